#!/usr/bin/env python3
"""Writes tests/data/parquet with pyarrow 26.0.1, which is no part of this project: `pip install pyarrow` in an
environment of its own, then run this in the repository."""

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path("tests/data/parquet")
ANSWERS = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
TEXTS = [(name, pa.string()) for name in ("id", "title", "context", "question")]
SQUAD = pa.schema(TEXTS + [("answers", ANSWERS)])  # as the hub's
UNTITLED = pa.schema([field for field in SQUAD if field.name != "title"])


def write(name, rows, schema=None, **options):
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), FOLDER / name, **options)


def row(name, question, texts, starts, context="Ada was."):
    return dict(id=name, context=context, question=question, answers=dict(text=texts, answer_start=starts))


def squad_rows(path):
    for article in json.loads(pathlib.Path(path).read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                yield dict(id=qa["id"], title=article.get("title", ""), context=paragraph["context"],
                           question=qa["question"],
                           answers=dict(text=[answer["text"] for answer in qa["answers"]],
                                        answer_start=[answer["answer_start"] for answer in qa["answers"]]))


write("squad-32.parquet", list(squad_rows("recipes/data/squad-32.json")), SQUAD, compression="snappy",
      row_group_size=10)
# The same in pages of the second version, whose levels are not compressed.
write("squad-32-zstd.parquet", list(squad_rows("recipes/data/squad-32.json")), SQUAD, compression="zstd",
      row_group_size=10, data_page_version="2.0")
for compression in ("zstd", "gzip", "brotli", "lz4", "none"):
    write(f"sums-{compression}.parquet",
          [dict(prompt=f"{i} + {i} = ", completion=f"{2 * i} é", n=i) for i in range(1, 8)], compression=compression)
write("squad-v2.parquet", [row("a", "Who?", ["Ada"], [0]), row("b", "When?", [], [])], UNTITLED)
write("list-of-structs.parquet",
      [dict(id=1, context="naïve Ada", question="Who?", answers=[dict(text="Ada", answer_start=6)])])
write("bad-rows.parquet",
      [row("a", "Who?", ["Ada"], [0]), row("b", None, ["Ada"], [0]), row("c", "Who?", ["Ada"], [4]),
       row("d", "Who?", ["Ada"], [0], context=" "), row("a", "Who?", ["Ada"], [0]),
       row("e", "Who?", ["Ada", "Ada"], [0])], UNTITLED)
no_text = pa.array([b"good", b"\xff\xfe bad"], pa.binary()).view(pa.string())
pq.write_table(pa.table({"prompt": pa.array(["p", "q"]), "completion": no_text}), FOLDER / "not-utf8.parquet",
               compression="none")
