#!/usr/bin/env python3
"""check_real_model.py MODEL.gguf DIR: compares the folder that scripts/real_model made with the file it was made from, which
transformers reads by itself, and Sherd with both. Ends with 1 at the first difference.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unicodedata

os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}  # nothing is looked up, and no bars

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from compare_with_transformers import BIN, BOUND, ROOT, batch_of, compare

DATA = [ROOT / "recipes/data" / name for name in ("squad-32.json", "squad-1000-train.json", "squad-100-heldout.json")]
HELDOUT, QUESTIONS = DATA[2], 8
ODD_TEXTS = ["", " ", "\n\n", "In 1990,  2 people\n 12", "don't  I'M",
             "café ﬀ ½ ٣٤ 世界 🙂‍↔️", "<|im_start|>user\nHi<|im_end|>\n", "\x00\x1d"]


def is_split_otherwise(text: str) -> bool:
    """The file asks for "smollm"'s way of splitting text, each digit alone; transformers' reader takes GPT-2's. They differ where
    white space is joined to a digit, and in digits outside ASCII (½, ³), which the vocabulary has joined to others."""
    return bool(re.search(r"\s\s\d", text)) or any(ord(c) > 127 and unicodedata.category(c)[0] == "N" for c in text)


def texts() -> list[str]:
    found = list(ODD_TEXTS)
    for path in DATA:
        for article in json.loads(path.read_text())["data"]:
            for paragraph in article["paragraphs"]:
                found.append(paragraph["context"])
                for question in paragraph["qas"]:
                    found += [question["question"], f"Question: {question['question']} Context: {paragraph['context']} Answer:"]
                    found += [" " + answer["text"] for answer in question["answers"]]
    return found


def check_tokenizer(reference, folder: str) -> None:
    made, cases = AutoTokenizer.from_pretrained(folder), texts()
    for case in cases:
        if not is_split_otherwise(case) and made(case)["input_ids"] != reference(case)["input_ids"]:
            sys.exit(f"the tokenizers differ: {case!r}")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level])
    ids = [reference(case)["input_ids"] for case in cases]
    for case, expected in zip(cases, ids):
        got = made(case)["input_ids"]
        if got != expected or made.decode(got) != reference.decode(expected):
            sys.exit(f"the tokenizers differ: {case!r}: {got}, expected {expected}")
    talk = [{"role": "user", "content": "Are dogs real?"}]
    prompts = [tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True) for tokenizer in (made, reference)]
    if prompts[0] != prompts[1] or [made.eos_token_id, made.pad_token_id] != [reference.eos_token_id, reference.pad_token_id]:
        sys.exit(f"chat template or special tokens differ: {prompts}")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for case, expected in zip(cases, ids):
            file.write(json.dumps({"text": case, "ids": expected, "ids_with_special": expected}) + "\n")
        file.flush()
        line = subprocess.run([BIN / "tokenizer_check", folder, file.name], check=True, stdout=subprocess.PIPE, text=True).stdout
    if json.loads(line)["differ"] != 0:
        sys.exit(f"Sherd's tokenizer differs: {line}")
    print(f"tokenizer: {len(cases)} texts, the same ids in transformers and in Sherd")


def check_weights(reference, made) -> None:
    expected, found = dict(reference.named_parameters()), dict(made.named_parameters())
    differ = [name for name in expected | found
              if name not in found or name not in expected or not torch.equal(expected[name], found[name])]
    if differ:
        sys.exit(f"{len(differ)} parameters differ, {differ[0]} first")
    numbers = sum(parameter.numel() for parameter in found.values())
    print(f"weights: {len(found)} tensors, {numbers} numbers, the same bits as transformers' own reading of the file")


@torch.no_grad()
def check_logits(reference, made, tokenizer) -> None:
    ids, mask, _ = batch_of(tokenizer)
    one, other = (model(input_ids=ids, attention_mask=mask).logits for model in (reference, made))
    difference = ((one - other).abs().max() / one.abs().max()).item()
    if not difference <= BOUND:
        sys.exit(f"logits differ by {difference:.1e}")
    print(f"logits in transformers, file and folder: largest relative difference {difference:.1e}")


@torch.no_grad()
def check_evaluation(reference, tokenizer, folder: str) -> None:
    """`sherd eval`'s loss over a few held-out questions, beside the same computed here."""
    total, count = 0.0, 0
    paragraphs = [p for article in json.loads(HELDOUT.read_text())["data"] for p in article["paragraphs"]]
    questions = [(p["context"], q) for p in paragraphs for q in p["qas"]][:QUESTIONS]
    for context, question in questions:
        prompt = tokenizer(f"Question: {question['question']} Context: {context} Answer:")["input_ids"]
        answer = tokenizer(" " + question["answers"][0]["text"])["input_ids"] + [tokenizer.eos_token_id]
        logits = reference(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits.double(), torch.tensor(answer), reduction="sum").item()
        count += len(answer)
    command = [BIN / "sherd", "eval", "--model", folder, "--data", HELDOUT, "--limit", str(QUESTIONS), "--loss-only", "--json"]
    line = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
    found, expected = json.loads(line)["loss"], total / count
    if not abs(found - expected) <= BOUND * expected:
        sys.exit(f"sherd eval: loss {found}, transformers: {expected}")
    print(f"sherd eval: loss {found:.6f} over {QUESTIONS} held-out questions; transformers: {expected:.6f}")


def main() -> None:
    path, folder = pathlib.Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    reference_tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    check_tokenizer(reference_tokenizer, folder)
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **options).eval()
    made = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    check_weights(reference, made)
    check_logits(reference, made, reference_tokenizer)
    del made
    check_evaluation(reference, reference_tokenizer, folder)
    # In fp64, so that Sherd's rounding is measured and not both.
    line = compare(folder, reference.double(), reference_tokenizer, steps=1)
    print("golden_check, two ranks, beside transformers with the package's file:", line)


if __name__ == "__main__":
    main()
