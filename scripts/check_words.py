#!/usr/bin/env python3
"""Checks the words of pages, public headers and messages. `make format-check` runs it.

    scripts/check_words.py                  # exit code 1 if something is refused
    scripts/check_words.py --statistics     # also prints sentences per page, and the share with at most 30 words

Refused are phrases that readers misread, identifiers that name nothing a newcomer knows, and sentences of more than 40 words in README and guides.
ALLOWED lists the identifiers that are still there, by file. It may only shrink: an entry without an occurrence is refused too.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# phrase: what to write instead
PHRASES = {
    " a rank,": '"per rank,"',
    "in all:": '"total:"',
    "is told": '"is reported", or say who reports it',
    "is said": '"is reported", or say who reports it',
    "of which there": "a sentence of its own",
    "where it is not there": '"if it is missing"',
    "beside it,": '"next to it," or "plus"',
    "goes on as it is": '"continues unchanged"',
}
IDENTIFIERS = ("Round", "Door", "Roster", "Speaker", "WaitBoard", "Cadence", "Unread", "together", "from_first_rank", "HomeChunk",
               "settle", "stretch")
MOST_WORDS = 40

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md", "docs/proof.md", "docs/api.md", "docs/guide/*.md", "examples/*.md")
SENTENCES = ("README.md", "docs/README.md", "docs/guide/*.md")
HEADERS = ("include/sherd/*.h",)
CODE = tuple(f"{folder}/**/*.{end}" for folder in ("include", "src", "ops", "llm", "app", "launch", "net", "files", "safetensors")
             for end in ("h", "cpp"))

# Identifiers that are still there: of the engine until its folders are rearranged.
ALLOWED = {
}

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def files(patterns):
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def prose(page):
    """The page's paragraphs, list items and table cells, without code."""
    text = re.sub(r"^```.*?^```", "\n", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:    |\t).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.)\s)|\n(?=\|)", text):
        yield from block.split("|") if block.lstrip().startswith("|") else [block]


def sentences(page):
    for block in prose(page):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[\"'(*A-Z0-9]|code)", " ".join(block.split())):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if words:
                yield sentence, len(words)


def find_phrases(text, where, faults, only_strings=False):
    spans = [found.span() for found in STRING.finditer(COMMENT.sub(lambda found: " " * len(found.group()), text))] if only_strings else [(0, len(text))]
    for begin, end in spans:
        for phrase, better in PHRASES.items():
            for found in re.finditer(re.escape(phrase).replace(r"\ ", r"\s+"), text[begin:end]):
                faults.append(f'{where}:{line_of(text, begin + found.start())}: "{phrase.strip()}": write {better}')


def find_identifiers(text, where, faults):
    code = STRING.sub('""', COMMENT.sub(" ", text))
    allowed = ALLOWED.get(where, "").split()
    for name in IDENTIFIERS:
        is_there = re.search(rf"\b{name}\b", code) is not None
        if is_there and name not in allowed:
            faults.append(f"{where}: the identifier {name}: use the field's term (CONTRIBUTING.md)")
        if not is_there and name in allowed:
            faults.append(f"{where}: {name} is gone; take it out of ALLOWED in scripts/check_words.py")


def main():
    faults = []
    for path in files(PAGES):
        find_phrases(path.read_text(), path.relative_to(ROOT).as_posix(), faults)
    for path in files(CODE):
        text, where = path.read_text(), path.relative_to(ROOT).as_posix()
        find_phrases(text, where, faults, only_strings=path not in files(HEADERS))
        find_identifiers(text, where, faults)
    for path in files(SENTENCES):
        where = path.relative_to(ROOT).as_posix()
        found = list(sentences(path.read_text()))
        faults += [f"{where}: {count} words in one sentence: {sentence[:90]}…" for sentence, count in found if count > MOST_WORDS]
        if "--statistics" in sys.argv[1:]:
            short = sum(count <= 30 for _, count in found)
            print(f"{where}: {len(found)} sentences, {100 * short / len(found):.1f} % of at most 30 words, longest {max(count for _, count in found)}")
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


sys.exit(main())
