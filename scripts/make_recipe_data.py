#!/usr/bin/env python3
"""Writes the SQuAD files of the recipes: recipes/data/squad-{32,1000-train,100-heldout}.json.

    python3 -m venv /tmp/recipe-data && /tmp/recipe-data/bin/pip install tokenizers==0.23.3
    /tmp/recipe-data/bin/python scripts/make_recipe_data.py SQUAD_DIR

SQUAD_DIR holds train-v1.1.json and dev-v1.1.json. Needs the `tokenizers` package, for counting only; the files it writes
are excerpts with every text unchanged, and the same input gives the same bytes.

- squad-32: the first 32 questions of the training file whose prompt, answer and end token have at most 300 tokens.
- squad-1000-train: whole paragraphs of the training file in file order, those whose questions all fit in 512 tokens with 32
  kept free for the answer (so that nothing is cut), until there are at least 1,000 questions.
- squad-100-heldout: the same of the dev file, whose articles are others, until there are at least 100.
Tokens are those of tests/data/stories260k-hf; the prompt is that of docs/guide/data-and-labels.md.
"""
import argparse
import json
import pathlib
import sys

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "recipes" / "data"
MAX_LENGTH, MAX_ANSWER, SHORT = 512, 32, 300


def prompt(question: str, context: str) -> str:
    return f"Question: {question} Context: {context} Answer:"


class Counter:
    """Tokens of a sample: with its answer and the end token, and of its prompt alone."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def whole(self, context: str, qa: dict) -> int:
        text = prompt(qa["question"], context) + " " + qa["answers"][0]["text"]
        return len(self.tokenizer.encode(text).ids) + 1

    def prompt(self, context: str, qa: dict) -> int:
        return len(self.tokenizer.encode(prompt(qa["question"], context)).ids)

    def fits(self, context: str, qa: dict) -> bool:
        """Neither context nor answer of the sample would be cut."""
        at_most = MAX_LENGTH - MAX_ANSWER
        alone = self.prompt(context, qa)
        return alone <= at_most and self.whole(context, qa) - alone <= MAX_ANSWER


def excerpt(squad: dict, choose, wanted: int) -> dict:
    """The file with the questions that `choose(context, qas)` gives of each paragraph, until there are `wanted`."""
    data, count = [], 0
    for article in squad["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            qas = choose(paragraph["context"], paragraph["qas"]) if count < wanted else []
            if qas:
                paragraphs.append({"context": paragraph["context"], "qas": qas})
                count += len(qas)
        if paragraphs:
            data.append({"title": article["title"], "paragraphs": paragraphs})
    return {"version": squad["version"], "data": data}


def questions(squad: dict) -> int:
    return sum(len(paragraph["qas"]) for article in squad["data"] for paragraph in article["paragraphs"])


def write(name: str, squad: dict) -> None:
    path = OUT / name
    path.write_text(json.dumps(squad, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    articles = len(squad["data"])
    print(f"{path.relative_to(ROOT)}: {questions(squad)} questions, {articles} articles, {path.stat().st_size} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("squad_dir", type=pathlib.Path)
    squad_dir = parser.parse_args().squad_dir
    counter = Counter(Tokenizer.from_file(str(ROOT / "tests/data/stories260k-hf/tokenizer.json")))
    train = json.loads((squad_dir / "train-v1.1.json").read_text(encoding="utf-8"))
    dev = json.loads((squad_dir / "dev-v1.1.json").read_text(encoding="utf-8"))

    left = [32]

    def short_ones(context: str, qas: list) -> list:
        chosen = [qa for qa in qas if counter.whole(context, qa) <= SHORT][: left[0]]
        left[0] -= len(chosen)
        return chosen

    def whole_paragraphs(context: str, qas: list) -> list:
        return qas if all(counter.fits(context, qa) for qa in qas) else []

    OUT.mkdir(parents=True, exist_ok=True)
    write("squad-32.json", excerpt(train, short_ones, 32))
    write("squad-1000-train.json", excerpt(train, whole_paragraphs, 1000))
    write("squad-100-heldout.json", excerpt(dev, whole_paragraphs, 100))
    return 0


if __name__ == "__main__":
    sys.exit(main())
