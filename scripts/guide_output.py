#!/usr/bin/env python3
"""Runs what a page of docs/guide shows, and writes what came out into the page.

    scripts/guide_output.py [PAGE …]        # default: every page of docs/guide

Shown is every indented block that begins with `    $ `: the command, with continuation lines that end
in a backslash, then what it prints, standard output and standard error together. A command that ends
with a code other than 0 is followed by `[exit code N]`. Commands run in the repository, one after the
other, with build/release/bin in the path and without the line of live progress.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^    \$ .*\n(?:    .*\n|\n(?=    ))*", re.MULTILINE)
COMMAND = re.compile(r"    \$ (?:.*\\\n)*.*\n")


def output_of(command):
    environment = dict(os.environ, PATH=f"{ROOT}/build/release/bin:{os.environ['PATH']}")
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = ended.stdout.rstrip("\n").split("\n") if ended.stdout else []
    if ended.returncode != 0:
        lines.append(f"[exit code {ended.returncode}]")
    return lines


def run_block(match):
    """The block with each of its commands' new output."""
    shown = ""
    for found in COMMAND.finditer(match.group(0)):
        command = "\n".join(line[4:] for line in found.group(0).splitlines())[2:]
        print("$", command, file=sys.stderr)
        lines = output_of(command)
        shown += found.group(0) + "".join(f"    {line}".rstrip() + "\n" for line in lines)
    return shown


def main(pages):
    for page in pages or sorted((ROOT / "docs/guide").glob("*.md")):
        page = pathlib.Path(page)
        page.write_text(BLOCK.sub(run_block, page.read_text()))


main(sys.argv[1:])
