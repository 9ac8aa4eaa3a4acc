"""SmolLM2-135M-Instruct learns 40 preference pairs by DPO on two ranks: it comes to prefer each chosen answer.

    SHERD_BIN=build/release/bin python3 tests/scripts/preferences_smollm2_test.py

Fetches the model on its first run. Prints the figures that it checks.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHERD = pathlib.Path(os.environ.get("SHERD_BIN", ROOT / "build/release/bin")).resolve() / "sherd"
SKIPPED = 77
NO_NETWORK = 69


def write_pairs(path):
    """The recipe's pairs as messages, since the model has a chat template."""
    pairs = [json.loads(line) for line in (ROOT / "recipes/data/preferences.jsonl").read_text(encoding="utf-8").splitlines()]
    records = [{"prompt": [{"role": "user", "content": pair["prompt"]}],
                "chosen": [{"role": "assistant", "content": pair["chosen"]}],
                "rejected": [{"role": "assistant", "content": pair["rejected"]}]} for pair in pairs]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
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


def main():
    code = subprocess.run([ROOT / "scripts/real_model"]).returncode
    if code == NO_NETWORK:
        print("SKIPPED: the model could not be fetched")
        return SKIPPED
    assert code == 0, code
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        count = write_pairs(folder / "pairs.jsonl")
        (folder / "recipe.toml").write_text(recipe(folder), encoding="utf-8")
        subprocess.run([SHERD, "launch", "-n", "2", "train", folder / "recipe.toml"], check=True)
        records = [json.loads(line) for line in (folder / "run/log.jsonl").read_text(encoding="utf-8").splitlines()]
        first = next(record for record in records if "event" not in record)
        before, after = [record for record in records if record.get("event") == "evaluation"]
    accuracy, margin = (after["figures"][f"rewards/{name}"] for name in ("accuracies", "margins"))
    print(f"loss of {count} pairs: {before['loss']:.6f} before, {after['loss']:.4f} after; accuracy {accuracy}, margin {margin:.3f}")
    assert abs(first["loss"] - math.log(2)) < 1e-4, first
    assert abs(before["loss"] - math.log(2)) < 1e-4, before
    assert accuracy == 1, after
    return 0


if __name__ == "__main__":
    sys.exit(main())
