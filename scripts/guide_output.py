#!/usr/bin/env python3
"""Runs the commands that a page shows, and writes their output into the page; or checks the page.

    scripts/guide_output.py [PAGE …]                   # rewrites; default: every page of docs/guide
    scripts/guide_output.py --check [PAGE …]           # checks; default: README, quick start, library, workshop, chat
        --long             runs slow commands too
        --programs DIR     uses the programs of this folder (default: build/release/bin)

Rewriting: a block that begins with `$ ` shows a command, with continuation lines that end in a backslash, and then its
standard output and standard error. `[exit code N]` follows a command that ends with another code than 0. Commands run in
the repository, with build/release/bin in the path.

Checking changes neither the page nor the repository (scripts/guide_check.py).
"""

import argparse
import pathlib
import sys
import tempfile

import guide_check
from guide_pages import Shell, commands_in, with_code

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECKED = ("README.md", "docs/guide/quick-start.md", "docs/guide/library.md", "docs/guide/workshop.md",
           "docs/guide/chat.md")


def rewrite(page, shell):
    lines = page.read_text().split("\n")
    outputs = []
    for command in commands_in("\n".join(lines)):
        if command.shown is None:
            continue
        print("$", command.text, file=sys.stderr)
        indent = "    " if lines[command.line - 1].startswith("    ") else ""
        outputs.append((command, [(indent + line).rstrip() for line in with_code(*shell.run(command.text))]))
    for command, output in reversed(outputs):
        lines[command.begin:command.end] = output
    page.write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    if options.check:
        pages = options.pages or [ROOT / page for page in CHECKED]
        sys.exit(guide_check.check(ROOT, [page.resolve() for page in pages], options.programs.resolve(), options.long,
                                   every_page=not options.pages))
    with tempfile.NamedTemporaryFile() as state:
        for page in options.pages or sorted((ROOT / "docs/guide").glob("*.md")):
            state.truncate()
            rewrite(page, Shell(ROOT, options.programs, state.name))


if __name__ == "__main__":
    main()
