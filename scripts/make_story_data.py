#!/usr/bin/env python3
"""Writes recipes/data/stories*: small data sets of five kinds, in our own words, always with the same bytes.

    python3 scripts/make_story_data.py

Needs pyarrow for the Parquet file; --without-parquet leaves that out.
"""
import argparse
import csv
import json
import pathlib
import random

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "recipes" / "data"
NAMES = ["Tim", "Lily", "Ben", "Mia", "Sam", "Anna", "Tom", "Sue", "Max", "Zoe"]
ANIMALS = ["dog", "cat", "bird", "fish", "frog", "bear", "duck", "bunny"]
LOOKS = ["red", "blue", "green", "yellow", "big", "little"]
PLACES = ["park", "garden", "house", "river", "forest", "beach"]
THINGS = ["ball", "box", "hat", "boat", "kite", "book", "cup", "doll"]


def message(role, content):
    return {"role": role, "content": content}


def chat(draw):
    name, animal, look, place, thing = draw(NAMES), draw(ANIMALS), draw(LOOKS), draw(PLACES), draw(THINGS)
    return {"messages": [
        message("user", f"Who has the {look} {thing}?"),
        message("assistant", f"{name} has the {look} {thing}. {name} took it to the {place}."),
        message("user", "Who is there too?"),
        message("assistant", f"A {animal} is there too. {name} and the {animal} play with the {thing}.")]}


def alpaca(draw):
    name, animal, look, place, thing = draw(NAMES), draw(ANIMALS), draw(LOOKS), draw(PLACES), draw(THINGS)
    return draw([
        {"instruction": "Say where they go.", "input": f"{name} and the {animal} go to the {place}.", "output": f"They go to the {place}."},
        {"instruction": "Say what it is like.", "input": f"The {thing} of {name} is {look}.", "output": f"The {thing} is {look}."},
        {"instruction": f"Tell me about {name} and a {animal}.", "input": "",
         "output": f"{name} had a {animal}. They went to the {place} and found a {look} {thing}."}])


def sharegpt(draw):
    name, animal, look, place, thing = draw(NAMES), draw(ANIMALS), draw(LOOKS), draw(PLACES), draw(THINGS)
    return {"conversations": [
        {"from": "human", "value": f"What did {name} see in the {place}?"},
        {"from": "gpt", "value": f"{name} saw a {animal} with a {look} {thing} in the {place}."},
        {"from": "human", "value": "Was it nice?"},
        {"from": "gpt", "value": f"Yes. The {animal} gave the {thing} to {name}."}]}


def question(draw):
    name, look, place, thing = draw(NAMES), draw(LOOKS), draw(PLACES), draw(THINGS)
    return {"question": f"{name} lost a {look} {thing} in the {place}. What did {name} lose?", "answer": f"{name} lost a {look} {thing}."}


def text(draw):
    name, animal, look, place, thing = draw(NAMES), draw(ANIMALS), draw(LOOKS), draw(PLACES), draw(THINGS)
    return {"text": f"Once upon a time, {name} had a {look} {thing}. One day, {name} went to the {place} with the {thing}. There was a "
                    f"{animal}. The {animal} wanted the {thing} too. \"We can play,\" said {name}. They played in the {place} all day."}


def different(make, count, seed):
    """`count` records, no two alike."""
    numbers = random.Random(seed)
    records = {}
    while len(records) < count:
        record = make(lambda choices: choices[int(numbers.random() * len(choices))])
        records.setdefault(json.dumps(record), record)
    return list(records.values())


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-parquet", action="store_true")
    arguments = parser.parse_args()
    (FOLDER / "stories-chat.jsonl").write_text(lines(different(chat, 120, 1)), encoding="utf-8")
    rows = ",\n".join(json.dumps(record) for record in different(alpaca, 160, 2))
    (FOLDER / "stories-alpaca.json").write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    with open(FOLDER / "stories.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["question", "answer"], lineterminator="\n")
        table.writeheader()
        table.writerows(different(question, 160, 4))
    (FOLDER / "stories-text.jsonl").write_text(lines(different(text, 120, 5)), encoding="utf-8")
    if not arguments.without_parquet:
        import pyarrow
        import pyarrow.parquet
        table = pyarrow.Table.from_pylist(different(sharegpt, 120, 3))
        pyarrow.parquet.write_table(table, FOLDER / "stories-chat.parquet", compression="zstd")


if __name__ == "__main__":
    main()
