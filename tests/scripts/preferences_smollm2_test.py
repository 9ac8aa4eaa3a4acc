"""SmolLM2-135M-Instruct learns 40 preference pairs by DPO on two ranks: it comes to prefer each chosen answer.

    SHERD_BIN=build/release/bin python3 tests/scripts/preferences_smollm2_test.py

Fetches the model on its first run. Prints the figures that it checks.
"""
import json
import math
import sys

from smollm2 import ROOT, read_lines, run_test, sherd, write_lines


def write_pairs(path):
    """The recipe's pairs as messages, since the model has a chat template."""
    pairs = read_lines(ROOT / "recipes/data/preferences.jsonl")
    records = [{"prompt": [{"role": "user", "content": pair["prompt"]}],
                "chosen": [{"role": "assistant", "content": pair["chosen"]}],
                "rejected": [{"role": "assistant", "content": pair["rejected"]}]} for pair in pairs]
    write_lines(path, records)
    return len(records)


def recipe(folder):
    return f"""
[model]
path = {json.dumps(str(ROOT / "models/smollm2-135m"))}

[data]
max_length = 256
cache = {json.dumps(str(folder / "tokens"))}

[[data.train]]
path = {json.dumps(str(folder / "pairs.jsonl"))}

[[data.eval]]
path = {json.dumps(str(folder / "pairs.jsonl"))}

[train]
objective = "dpo"
output = {json.dumps(str(folder / "run"))}
epochs = 3
global_batch = 8
micro_batch = 4

[optim]
lr = 5e-6

[schedule]
warmup = "2 steps"

[precision]
param_dtype = "float32"

[eval]
every = "never"
at_start = true
"""


def learns_the_pairs(folder):
    count = write_pairs(folder / "pairs.jsonl")
    (folder / "recipe.toml").write_text(recipe(folder), encoding="utf-8")
    sherd("launch", "-n", 2, "train", folder / "recipe.toml")
    records = read_lines(folder / "run/log.jsonl")
    first = next(record for record in records if "event" not in record)
    before, after = [record for record in records if record.get("event") == "evaluation"]
    accuracy, margin = (after["figures"][f"rewards/{name}"] for name in ("accuracies", "margins"))
    print(f"loss of {count} pairs: {before['loss']:.6f} before, {after['loss']:.4f} after; accuracy {accuracy}, margin {margin:.3f}")
    assert abs(first["loss"] - math.log(2)) < 1e-4, first
    assert abs(before["loss"] - math.log(2)) < 1e-4, before
    assert accuracy == 1, after


if __name__ == "__main__":
    sys.exit(run_test(learns_the_pairs))
