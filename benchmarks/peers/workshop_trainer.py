"""Experiment 1 of the workshop by Hugging Face's Trainer: one process, loss only, answers supervised.

  workshop_trainer.py MODEL_DIR TRAIN.json EVAL.json --padding max|dynamic [--max-length 512] [--epochs 1] [--threads 2] [--bf16]

Reads questions that fit in --max-length. Prints one line of JSON: seconds of training and of the evaluation after it, samples, and the
evaluation loss before and after.
"""
import argparse
import json
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

from trainer import questions_of, sample_of


def padded(samples, length, filler):
    def rows(key, value):
        return torch.tensor([sample[key] + [value] * (length - len(sample[key])) for sample in samples])

    mask = torch.tensor([[1] * len(s["input_ids"]) + [0] * (length - len(s["input_ids"])) for s in samples])
    return {"input_ids": rows("input_ids", filler), "attention_mask": mask, "labels": rows("labels", -100)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("evaluation")
    parser.add_argument("--padding", choices=["max", "dynamic"], required=True)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    samples, heldout = ([sample_of(tokenizer, one, options.max_length) for one in questions_of(path, None)]
                        for path in (options.train, options.evaluation))

    def collate(batch):
        longest = max(len(sample["input_ids"]) for sample in batch)
        return padded(batch, options.max_length if options.padding == "max" else longest, 0)

    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out, num_train_epochs=options.epochs, per_device_train_batch_size=1, per_device_eval_batch_size=1,
            gradient_accumulation_steps=4, learning_rate=5e-5, lr_scheduler_type="linear", weight_decay=0.01, max_grad_norm=1.0,
            bf16=options.bf16, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1000, disable_tqdm=True,
            remove_unused_columns=False, prediction_loss_only=True)
        trainer = Trainer(model=model, args=arguments, train_dataset=samples, eval_dataset=heldout, data_collator=collate)
        before = trainer.evaluate()["eval_loss"]
        start = time.perf_counter()
        trainer.train()
        trained = time.perf_counter()
        after = trainer.evaluate()["eval_loss"]
        end = time.perf_counter()
    print(json.dumps({"train_seconds": trained - start, "eval_seconds": end - trained, "train_samples": len(samples) * options.epochs,
                      "eval_samples": len(heldout), "loss_before": before, "loss": after, "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
