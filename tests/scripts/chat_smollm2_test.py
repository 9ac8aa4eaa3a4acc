"""SmolLM2-135M-Instruct learns a harbour master's speech from 200 dialogues on two ranks: its answers end, and little else changes.

    SHERD_BIN=build/release/bin python3 tests/scripts/chat_smollm2_test.py

Fetches the model on its first run. Prints the figures that it checks.
"""
import json
import random
import sys

from smollm2 import ROOT, read_lines, run_test, sherd, write_lines

TURNS = 100
LIMIT = 64

SHIPS = ["Petrel", "Marigold", "Otter", "Northern Star", "Heron", "Swift", "Juniper", "Old Tom", "Silver Tern", "Bluebell", "Kestrel",
         "Mary Ann", "Walrus", "Gannet", "Hazel", "Lady Grey"]
QUAYS = ["north quay", "south quay", "fish pier", "old pier", "coal dock", "stone steps", "outer mole", "ferry landing"]
CARGOES = ["wool", "timber", "salt", "herring", "apples", "barley", "slate", "tea", "rope", "glass"]
HOURS = ["dawn", "six", "seven", "noon", "four", "five", "dusk", "high water"]
WINDS = ["north", "south", "east", "west"]
CLOSING = "Fair winds!"

# Questions and answers; every answer ends with the same words.
EXCHANGES = [
    ("Where does the {ship} lie?", "The {ship} lies at the {quay}, with {cargo} in her hold."),
    ("What does the {ship} carry?", "The {ship} carries {cargo}, and she unloads at the {quay}."),
    ("When does the {ship} sail?", "The {ship} sails at {hour}, if the wind stays in the {wind}."),
    ("Is there room at the {quay} for the {ship}?", "There is room at the {quay}. Bring the {ship} in at {hour}."),
    ("May I load {cargo} at the {quay}?", "Load your {cargo} at the {quay}, but be done by {hour}."),
    ("The wind blows from the {wind}. Is the {quay} safe?", "With the wind in the {wind} the {quay} is safe until {hour}."),
    ("Who brings {cargo} at {hour}?", "The {ship} brings {cargo} at {hour}. She ties up at the {quay}."),
    ("The {ship} has lost her anchor near the {quay}. What now?", "Send word to the {quay}. A boat finds the anchor of the {ship} by {hour}."),
]


def dialogue(draw):
    """Two questions about one ship, with their answers."""
    words = {"ship": draw(SHIPS), "quay": draw(QUAYS), "cargo": draw(CARGOES), "hour": draw(HOURS), "wind": draw(WINDS)}
    messages = []
    for question, answer in [draw(EXCHANGES), draw(EXCHANGES)]:
        messages.append({"role": "user", "content": question.format(**words)})
        messages.append({"role": "assistant", "content": f"{answer.format(**words)} {CLOSING}"})
    return messages


def dialogues_and_turns():
    """200 dialogues, and 100 first questions that none of them asks."""
    draw = random.Random(36).choice
    learned = [dialogue(draw) for _ in range(200)]
    asked = {message["content"] for messages in learned for message in messages}
    turns = []
    while len(turns) < TURNS:
        question = dialogue(draw)[0]["content"]
        if question not in asked:
            asked.add(question)
            turns.append(question)
    return learned, turns


def recipe(folder):
    return f"""
[model]
path = {json.dumps(str(ROOT / "models/smollm2-135m"))}

[data]
max_length = 256
cache = "none"

[[data.train]]
path = {json.dumps(str(folder / "dialogues.jsonl"))}
format = "chat"

[[data.eval]]
path = {json.dumps(str(ROOT / "tests/data/plain-turns.jsonl"))}
format = "chat"

[train]
output = {json.dumps(str(folder / "run"))}
epochs = 2
global_batch = 8
micro_batch = 4

[optim]
lr = 2e-5

[schedule]
kind = "linear"
warmup = "10 steps"

[precision]
param_dtype = "bfloat16"

[eval]
every = "never"
at_start = true
"""


def answers(model, folder, limit):
    out = folder / f"answers-{limit}.jsonl"
    sherd("launch", "-n", 2, "generate", model, "--chat", "--prompts", folder / "turns.jsonl", "--max-new-tokens", limit, "--batch", 50,
          "--dtype", "bf16", "--out", out)
    return [line["completion"] for line in read_lines(out)]


def count_ended(model, folder):
    """Answers that a larger limit does not change: such an answer ended by the stop token."""
    short, long = answers(model, folder, LIMIT), answers(model, folder, LIMIT + 8)
    for answer in short[:5]:
        print(f"  {answer}")
    in_style = sum(answer.endswith(CLOSING) for answer in short)
    return sum(a == b for a, b in zip(short, long, strict=True)), in_style


def learns_a_style(folder):
    learned, turns = dialogues_and_turns()
    write_lines(folder / "dialogues.jsonl", [{"messages": messages} for messages in learned])
    write_lines(folder / "turns.jsonl", [{"prompt": turn} for turn in turns])
    (folder / "recipe.toml").write_text(recipe(folder), encoding="utf-8")
    sherd("launch", "-n", 2, "train", folder / "recipe.toml")
    summary = json.loads((folder / "run/summary.json").read_text(encoding="utf-8"))
    before, after = summary["eval_loss_at_start"], summary["eval_loss"]
    print(f"loss of 50 turns in another style: {before:.4f} before, {after:.4f} after, {after / before - 1:+.1%}")
    assert after <= 1.1 * before
    sherd("export", folder / "run", "--out", folder / "exported")
    ended, in_style = count_ended(folder / "exported", folder)
    print(f"{ended} of {TURNS} answers ended by the stop token within {LIMIT} tokens, {in_style} in the style that was learned")
    assert ended == TURNS


if __name__ == "__main__":
    sys.exit(run_test(learns_a_style))
