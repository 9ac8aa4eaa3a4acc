"""Chat data prepared by Sherd and by Hugging Face's datasets, in turns, on the same conversations.

  prepare_chat.py MODEL_FOLDER SQUAD_FILE [--megabytes 120] [--rounds 3] [--program build/release/bin/prepare]

MODEL_FOLDER has tokenizer.json and a chat template. Conversations of one to four questions about a paragraph are drawn from
SQUAD_FILE (v1.1, JSON) with a fixed seed. Needs transformers and datasets (requirements-default.txt and datasets==5.2.0).

Sherd reads, renders, encodes, marks what is learned and writes a token store, on all cores. The peer uses two processes
(num_proc=2) and a fast tokenizer in two ways:
  batched   load_dataset("json"), a batched map that renders, a batched map that encodes
  by TRL    load_dataset("json"), and the map of trl's SFTTrainer (_prepare_dataset), which renders and encodes one by one
Neither marks what is learned: most templates lack the marks (generation blocks) that the peer needs for it.
Prints seconds of each part and round, and ratios of medians.
"""
import argparse
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import machine  # noqa: E402

PROCESSES = 2


def write_conversations(path, squad, megabytes):
    articles = json.loads(pathlib.Path(squad).read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    draw = random.Random(1)
    written = 0
    with open(path, "w") as out:
        while written < megabytes * 1e6:
            paragraph = draw.choice(paragraphs)
            questions = draw.sample(paragraph["qas"], min(len(paragraph["qas"]), draw.randint(1, 4)))
            messages = [{"role": "system", "content": "Answer questions about this text.\n\n" + paragraph["context"]}]
            for one in questions:
                messages.append({"role": "user", "content": one["question"]})
                messages.append({"role": "assistant", "content": "It is " + one["answers"][0]["text"] + "."})
            written += out.write(json.dumps({"messages": messages}) + "\n")


def by_sherd(program, model, data):
    """Seconds of the benchmark's `prepare`, and its whole output."""
    output = subprocess.run([program, model, "--data", data], check=True, capture_output=True, text=True).stdout
    return float(re.search(r"^prepare +([0-9.]+) s", output, re.M)[1]), output


def by_datasets(model, data, batched):
    """Seconds of reading, rendering and encoding, in a new cache. Each includes what it writes."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def render(batch):
        return {"text": tokenizer.apply_chat_template(batch["messages"], tokenize=False)}

    def encode(batch):
        return {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]}

    def tokenize(example):
        return {"input_ids": tokenizer.apply_chat_template(example["messages"], tokenize=True, return_dict=True)["input_ids"]}

    steps = [(render, True), (encode, True)] if batched else [(tokenize, False)]
    seconds = []
    with tempfile.TemporaryDirectory() as cache:
        begin = time.monotonic()
        rows = datasets.load_dataset("json", data_files=data, cache_dir=cache, split="train")
        seconds.append(time.monotonic() - begin)
        for function, is_batched in steps:
            begin = time.monotonic()
            rows = rows.map(function, batched=is_batched, num_proc=PROCESSES, remove_columns=rows.column_names)
            seconds.append(time.monotonic() - begin)
    return seconds


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("model")
    parser.add_argument("squad")
    parser.add_argument("--megabytes", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default="build/release/bin/prepare")
    arguments = parser.parse_args()
    totals = {"sherd": [], "batched": [], "by TRL": []}
    with tempfile.TemporaryDirectory() as folder:
        data = str(pathlib.Path(folder) / "chat.jsonl")
        write_conversations(data, arguments.squad, arguments.megabytes)
        print(machine.processor())
        for turn in range(1, arguments.rounds + 1):
            seconds, output = by_sherd(arguments.program, arguments.model, data)
            if turn == 1:
                print(output)
            totals["sherd"].append(seconds)
            print(f"round {turn}  sherd    {seconds:7.1f} s", flush=True)
            for name in ("batched", "by TRL"):
                parts = by_datasets(arguments.model, data, name == "batched")
                totals[name].append(sum(parts))
                labels = ("read", "render", "encode") if name == "batched" else ("read", "render and encode")
                told = ", ".join(f"{label} {part:.1f}" for label, part in zip(labels, parts))
                print(f"round {turn}  {name:8} {sum(parts):7.1f} s ({told})", flush=True)
    sherd = statistics.median(totals["sherd"])
    for name in ("batched", "by TRL"):
        print(f"{name}: {statistics.median(totals[name]) / sherd:.2f} × the seconds of Sherd (medians)")


if __name__ == "__main__":
    main()
