"""The recipe of the real model by Hugging Face's Trainer: the same questions, prompts and settings, one process, fp32.

  trainer.py RECIPE MODEL_DIR [--threads 2] [--questions 100] [--bf16]

Reads Sherd's recipe. Prints one line of JSON: seconds of training, loss before and after, exact match and F1 after, of the recipe's
evaluation file. The scores are SQuAD v1.1's.
"""
import argparse
import collections
import json
import pathlib
import re
import string
import tempfile
import time
import tomllib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

MAX_ANSWER_TOKENS = 32


def questions_of(path, limit):
    articles = json.loads(pathlib.Path(path).read_text())["data"]
    found = [{"question": one["question"], "context": paragraph["context"], "answers": [answer["text"] for answer in one["answers"]]}
             for article in articles for paragraph in article["paragraphs"] for one in paragraph["qas"]]
    return found[:limit]


def prompt_of(question):
    return f"Question: {question['question']} Context: {question['context']} Answer:"


def sample_of(tokenizer, question, max_length):
    """Ids and labels: the answer and the end token are supervised."""
    prompt = tokenizer(prompt_of(question))["input_ids"]
    whole = tokenizer(prompt_of(question) + " " + question["answers"][0])["input_ids"] + [tokenizer.eos_token_id]
    if len(whole) > max_length:
        raise SystemExit("a question of the recipe is longer than data.max_length")
    return {"input_ids": whole, "labels": [-100] * len(prompt) + whole[len(prompt):]}


def collate(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)

    def rows(key, filler):
        return torch.tensor([sample[key] + [filler] * (longest - len(sample[key])) for sample in samples])

    ids = rows("input_ids", 0)
    mask = torch.tensor([[1] * len(s["input_ids"]) + [0] * (longest - len(s["input_ids"])) for s in samples])
    return {"input_ids": ids, "attention_mask": mask, "labels": rows("labels", -100)}


@torch.no_grad()
def loss_of(model, samples):
    model.eval()
    total, tokens = 0.0, 0
    for sample in samples:
        batch = collate([sample])
        supervised = (batch["labels"][:, 1:] != -100).sum().item()
        total += model(**batch).loss.float().item() * supervised
        tokens += supervised
    return total / tokens


def normalized(text):
    text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(prediction, gold):
    prediction, gold = normalized(prediction).split(), normalized(gold).split()
    same = sum((collections.Counter(prediction) & collections.Counter(gold)).values())
    return 2 * same / (len(prediction) + len(gold)) if same else 0.0


@torch.no_grad()
def scores(model, tokenizer, questions):
    model.eval()
    exact, overlap = 0.0, 0.0
    for question in questions:
        ids = tokenizer(prompt_of(question), return_tensors="pt")["input_ids"]
        written = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_ANSWER_TOKENS,
                                 pad_token_id=tokenizer.eos_token_id)[0, ids.shape[1]:]
        answer = tokenizer.decode(written, skip_special_tokens=True)
        exact += max(normalized(answer) == normalized(gold) for gold in question["answers"])
        overlap += max(f1(answer, gold) for gold in question["answers"])
    return 100 * exact / len(questions), 100 * overlap / len(questions)


def arguments_of(recipe, out, bf16):
    optim, schedule, train = recipe["optim"], recipe["schedule"], recipe["train"]
    return TrainingArguments(
        output_dir=out, num_train_epochs=train["epochs"], per_device_train_batch_size=train["micro_batch"],
        gradient_accumulation_steps=train["global_batch"] // train["micro_batch"], learning_rate=optim["lr"],
        lr_scheduler_type=schedule["kind"], warmup_steps=int(schedule["warmup"].split()[0]),
        weight_decay=optim.get("weight_decay", 0.0), adam_beta1=optim.get("betas", [0.9, 0.999])[0],
        adam_beta2=optim.get("betas", [0.9, 0.999])[1], max_grad_norm=optim.get("clip_grad_norm", 1.0), seed=train.get("seed", 0),
        bf16=bf16, use_cpu=True, report_to=[], save_strategy="no", logging_steps=20, disable_tqdm=True, remove_unused_columns=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--questions", type=int, default=100, help="held-out questions asked")
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = tomllib.loads(pathlib.Path(options.recipe).read_text())
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    training, evaluation = recipe["data"]["train"][0], recipe["data"]["eval"][0]
    max_length = recipe["data"]["max_length"]
    samples = [sample_of(tokenizer, one, max_length) for one in questions_of(training["path"], training["limit"])]
    heldout = questions_of(evaluation["path"], options.questions)
    heldout_samples = [sample_of(tokenizer, one, max_length) for one in heldout]
    before = loss_of(model, heldout_samples)
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(model=model, args=arguments_of(recipe, out, options.bf16), train_dataset=samples, data_collator=collate)
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
    start = time.perf_counter()
    exact, overlap = scores(model, tokenizer, heldout)
    print(json.dumps({"train_seconds": seconds, "generate_seconds": time.perf_counter() - start, "loss_before": before,
                      "loss": loss_of(model, heldout_samples), "em": exact, "f1": overlap, "questions": len(heldout)}), flush=True)


if __name__ == "__main__":
    main()
