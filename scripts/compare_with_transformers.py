#!/usr/bin/env python3
"""compare_with_transformers.py EXPORT_DIR: loads a Hugging Face folder that `sherd export` wrote in transformers, writes
the logits of a few questions, and asks Sherd's golden_check to compare them with its own.

Prints golden_check's line; exits with 1 if logits, loss or a gradient differ by more than 1e-4.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUND = 1e-4
PROMPT_TOKENS = 20  # not supervised


def batch_of(tokenizer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two questions [2, T], padded on the right; labels -100 on padding and on the first tokens."""
    data = json.loads((ROOT / "recipes/data/squad-32.json").read_text())["data"]
    contexts = [paragraph["context"] for article in data for paragraph in article["paragraphs"]][:2]
    rows = [tokenizer(text)["input_ids"][:length] for text, length in zip(contexts * 2, (96, 71))]
    ids = torch.zeros(2, 96, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :PROMPT_TOKENS] = -100
    return ids, mask, labels


def train(model, batch) -> tuple[list[float], list[float]]:
    """Five steps as golden_check takes them."""
    ids, mask, labels = batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norms = [], []
    for _ in range(5):
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        with torch.no_grad():
            losses.append(model(input_ids=ids, attention_mask=mask, labels=labels).loss.item())
    return losses, norms


def main() -> None:
    folder = sys.argv[1]
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids, mask, labels = batch = batch_of(AutoTokenizer.from_pretrained(folder))
    output = model(input_ids=ids, attention_mask=mask, labels=labels)
    output.loss.backward()
    golden = {
        "input_ids": ids, "attention_mask": mask, "labels": labels,
        "logits": output.logits.detach().contiguous(), "loss": output.loss.detach(),
    }
    golden |= {f"grad.{name}": p.grad.clone() for name, p in model.named_parameters()}
    losses, norms = train(model, batch)
    golden |= {"losses": torch.tensor(losses), "grad_norms": torch.tensor(norms)}
    with tempfile.TemporaryDirectory() as temporary:
        path = f"{temporary}/golden.safetensors"
        save_file(golden, path)
        line = subprocess.run([ROOT / "build/release/bin/golden_check", folder, path, "--ranks", "2"],
                              check=True, capture_output=True, text=True).stdout
    print("the export in transformers, and in Sherd:", line.strip())
    result = json.loads(line)
    worst = max(value for key, value in result.items() if key.endswith("_rel"))
    sys.exit(0 if worst <= BOUND else f"they differ by {worst:.1e}, more than {BOUND}")


if __name__ == "__main__":
    main()
