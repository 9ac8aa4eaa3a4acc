#!/usr/bin/env python3
"""compare_with_transformers.py EXPORT_DIR: loads a Hugging Face folder that `sherd export` wrote in transformers, writes
the logits of a few questions, and asks Sherd's golden_check to compare them with its own.

Prints golden_check's line; exits with 1 if logits, loss or a gradient differ by more than 1e-4.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("SHERD_BIN", ROOT / "build/release/bin"))
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


def loss_of(model, batch) -> torch.Tensor:
    """The mean over supervised tokens, of which cross-entropy is computed in fp64: over a vocabulary of 50,000 torch's sum of
    fp32 exponentials alone is off by 2e-6, and gradients of large cancelling terms by 1e-3."""
    ids, mask, labels = batch
    output = model(input_ids=ids, attention_mask=mask, labels=labels)
    loss = torch.nn.functional.cross_entropy(output.logits[:, :-1].double().flatten(0, 1), labels[:, 1:].flatten())
    if not abs(loss.item() - output.loss.item()) <= 1e-5 * loss.item():
        sys.exit(f"transformers computes the loss {output.loss.item()}, and not the mean over supervised tokens, {loss.item()}")
    return loss


def train(model, batch, steps: int) -> tuple[list[float], list[float]]:
    """Steps as golden_check takes them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        with torch.no_grad():
            losses.append(loss_of(model, batch).item())
    return losses, norms


def golden_of(model, tokenizer, steps: int) -> dict[str, torch.Tensor]:
    """What golden_check compares with (tests/data/README.md). The model is trained by it."""
    ids, mask, labels = batch = batch_of(tokenizer)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    loss = loss_of(model, batch)
    loss.backward()
    golden = {"input_ids": ids, "attention_mask": mask, "labels": labels, "logits": logits.float(), "loss": loss.detach()}
    golden |= {f"grad.{name}": p.grad.float().clone() for name, p in model.named_parameters()}
    losses, norms = train(model, batch, steps)
    return golden | {"losses": torch.tensor(losses), "grad_norms": torch.tensor(norms)}


def compare(folder: str, model, tokenizer, steps: int = 5) -> str:
    """golden_check's line for the model in `folder` on two ranks; ends the program if a difference is beyond the bound."""
    with tempfile.TemporaryDirectory() as temporary:
        path = f"{temporary}/golden.safetensors"
        save_file(golden_of(model, tokenizer, steps), path)
        line = subprocess.run([BIN / "golden_check", folder, path, "--ranks", "2"],
                              check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    worst = max(value for key, value in json.loads(line).items() if key.endswith("_rel"))
    if not worst <= BOUND:
        sys.exit(f"{line}\nthey differ by {worst:.1e}, more than {BOUND}")
    return line


def main() -> None:
    folder = sys.argv[1]
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    print("the export in transformers, and in Sherd:", compare(folder, model, AutoTokenizer.from_pretrained(folder)))


if __name__ == "__main__":
    main()
