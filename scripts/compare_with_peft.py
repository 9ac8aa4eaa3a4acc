#!/usr/bin/env python3
"""compare_with_peft.py OUT: adapters between Sherd and PEFT, both ways.

Makes small models (a Llama with its own head, a GPT-2) and, over each,
- an adapter that Sherd trains and PEFT loads: logits, loss, gradients and steps of PEFT are recorded, and golden_check
  compares Sherd's with them
- an adapter that PEFT makes, with a module that is trained whole, which golden_check reads in the same way
- Sherd's merged export, which must have the logits of base and adapter in PEFT.
Exits with 1 if they differ by more than 1e-4.
"""
import json
import pathlib
import shutil
import subprocess
import sys

import torch
from compare_with_transformers import BIN, BOUND, ROOT, batch_of, loss_of
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

STORIES = ROOT / "recipes/models/stories260k"
MODELS = {
    "llama": LlamaConfig(vocab_size=512, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
                         num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False),
    "gpt2": GPT2Config(vocab_size=512, n_embd=48, n_layer=3, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2),
}
# What Sherd trains, as flags; what PEFT makes, as a LoraConfig.
SHERD = {
    "llama": ["--adapter.targets", "all-linear", "--adapter.rank", "3", "--adapter.rank_stabilized", "true"],
    "gpt2": ["--adapter.targets", "c_attn,c_proj", "--adapter.exclude", "h.0.mlp.c_proj", "--adapter.rank_pattern", "mlp.c_proj=2"],
}
PEFT = {
    "llama": {"target_modules": r".*layers\.[02]\.(?!mlp).*_proj|.*down_proj", "modules_to_save": ["lm_head"], "r": 4},
    "gpt2": {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "alpha_pattern": {"c_fc": 3}, "r": 5},
}


def make_base(name: str, folder: pathlib.Path) -> None:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(MODELS[name])
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(STORIES / file, folder)


def base_of(folder: pathlib.Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def golden_of(model, batch, steps: int = 3) -> dict[str, torch.Tensor]:
    """What golden_check --adapter compares with. The adapter is trained by it."""
    ids, mask, labels = batch
    trained = {name.replace(".modules_to_save.default", "").replace(".default.weight", ".weight"): p
               for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    loss = loss_of(model, batch)
    loss.backward()
    golden = {"input_ids": ids, "attention_mask": mask, "labels": labels, "logits": logits.float(), "loss": loss.detach().float()}
    golden |= {f"grad.{name}": p.grad.clone() for name, p in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(trained.values()), 1.0).item())
        optimizer.step()
        with torch.no_grad():
            losses.append(loss_of(model, batch).item())
    return golden | {"losses": torch.tensor(losses), "grad_norms": torch.tensor(norms)}


def compare(base: pathlib.Path, adapter: pathlib.Path, batch) -> None:
    """Prints golden_check's line for the adapter on two ranks, as PEFT computes it."""
    model = PeftModel.from_pretrained(base_of(base), adapter, is_trainable=True).eval()
    path = adapter.parent / f"{adapter.name}.safetensors"
    save_file(golden_of(model, batch), path)
    line = subprocess.run([BIN / "golden_check", base, path, "--ranks", "2", "--adapter", adapter],
                          check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    worst = max(value for key, value in json.loads(line).items() if key.endswith("_rel"))
    print(f"{adapter}: {line}")
    if not worst <= BOUND:
        sys.exit(f"they differ by {worst:.1e}, more than {BOUND}")


def compare_merged(base: pathlib.Path, adapter: pathlib.Path, merged: pathlib.Path, batch) -> None:
    ids, mask, _ = batch
    with torch.no_grad():
        ours = base_of(merged).eval()(input_ids=ids, attention_mask=mask).logits
        theirs = PeftModel.from_pretrained(base_of(base), adapter).eval()(input_ids=ids, attention_mask=mask).logits
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{merged}: logits differ from those of base and adapter by {difference:.1e}")
    if not difference <= BOUND:
        sys.exit(f"more than {BOUND}")


def run_sherd(*words) -> None:
    subprocess.run([BIN / "sherd", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    out = pathlib.Path(sys.argv[1]).resolve()
    shutil.rmtree(out, ignore_errors=True)
    torch.set_num_threads(1)
    for name in MODELS:
        base = out / name / "base"
        make_base(name, base)
        batch = batch_of(AutoTokenizer.from_pretrained(base))
        run_sherd("train", "recipes/stories260k-squad-32.toml", "--model.path", base, "--adapter.kind", "lora", *SHERD[name],
                  "--train.max_steps", 3, "--data.max_length", 96, "--data.on_bad_sample", "skip", "--eval.at_end", "false",
                  "--optim.lr", "1e-2", "--precision.param_dtype", "float32", "--train.output", out / name / "run")
        run_sherd("export", out / name / "run", "--out", out / name / "sherd")
        run_sherd("export", out / name / "run", "--merged", "--out", out / name / "merged", "--dtype", "fp32")
        compare(base, out / name / "sherd", batch)
        compare_merged(base, out / name / "sherd", out / name / "merged", batch)

        made = get_peft_model(base_of(base), LoraConfig(task_type="CAUSAL_LM", lora_alpha=9, init_lora_weights=False, **PEFT[name]))
        made.save_pretrained(out / name / "peft")
        compare(base, out / name / "peft", batch)


if __name__ == "__main__":
    main()
