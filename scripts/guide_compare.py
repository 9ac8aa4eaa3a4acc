"""Compares what a command printed with what its page shows.

Texts must be equal, apart from the width of blanks. Figures of time, memory and speed may differ. Whole numbers must be
equal. Numbers with a decimal point, such as losses, may differ by LOSS_TOLERANCE (relative), exact match and F1 by
SCORE_TOLERANCE points, because kernels for another instruction set round differently. A number is a figure of time,
memory or speed if a unit follows it, or if the title of its column, table or row says so.
"""

import re

LOSS_TOLERANCE = 0.03
SMALL_LOSS = 0.01  # absolute; for a model that knows its samples by heart
SCORE_TOLERANCE = 12.0
NUMBER = re.compile(r"\d+(?::\d\d)+|\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
UNIT = re.compile(r"\s?(?:(?:s|ms|µs|min|h|seconds|minutes|[KMGT]i?B|[KMG]?bit|samples|steps|tokens)(?:/\w+)?(?![\w-])"
                  r"|×(?= |$)|times\b|threads?\b|cores?\b|% (?:less|more|faster|slower)\b)")
WHOLE_COUNT = re.compile(r"\s?(?:samples|steps|tokens)(?!/)")
MEASURED = re.compile(r"\b(?:runtime|time|memory|peak|[KMG]iB|ms|seconds|speed-?up|efficiency|throughput|per second)\b"
                      r"|(?:^|[ ,])s$|\w/s\b", re.I)
SCORE = re.compile(r"\b(?:EM|F1|exact match)\b", re.I)
QUANTITY = re.compile(r"\b(?:EM|F1|exact match|loss|gnorm|lr)\b", re.I)
# Words that depend on the machine, or on which of two runs was a little faster.
MACHINE = re.compile(r"(?<=computed in )\w+|\bavx\w*\b|\bamx\w*\b|\d+\.\d+ x \([^)]*\)|\b(?:at most|less than) [\d.]+ %"
                     r"|\d[\d.,]*(?: to \d[\d.,]*)?(?= MiB)")
SENTENCE = re.compile(r"[A-Z]\w+: \S+(?: \S+)*$")
TITLE = re.compile(r"\D{1,50}")
CELL = re.compile(r"\S+(?: \S+)*")


def paragraphs(lines):
    """Yields [first, end) of each sequence of lines that are not blank."""
    first = None
    for at, line in enumerate([*lines, ""]):
        if line.strip() and first is None:
            first = at
        elif not line.strip() and first is not None:
            yield first, at
            first = None


def contexts(lines):
    """Returns for each line a function from a span to the titles of its table, row and column, one per line."""
    named = [lambda begin, end: "" for _ in lines]
    for first, end in paragraphs(lines):
        heads, corner = [], ""
        for at in range(first, end):
            cells = list(CELL.finditer(lines[at]))
            if re.search(r"\d\.\d", lines[at]) or (len(cells) == 1 and not TITLE.fullmatch(cells[0][0])):
                break
            heads += [(cell.start(), cell.end(), cell[0]) for cell in cells]
            if at == first and cells[0].start() == 0:
                corner = cells[0][0]
        for at in range(first, end):
            row = CELL.search(lines[at])[0] if len(CELL.findall(lines[at])) > 1 else ""
            named[at] = lambda begin, end, heads=heads, row=row, corner=corner: "\n".join(
                [corner, row, *(text for left, right, text in heads if left < end and begin < right)])
    return named


def numbers_agree(shown, printed, name):
    if shown == printed:
        return True
    if ":" in shown or ":" in printed or ("." not in shown and "." not in printed):
        return False
    a, b = (float(number.replace(",", "")) for number in (shown, printed))
    if any(SCORE.search(part) for part in name.split("\n")):
        return abs(a - b) <= SCORE_TOLERANCE
    before = name.split("\n")[-1]
    if before in ("", "loss") and "loss" in name and abs(a - b) <= SMALL_LOSS:
        return True
    return abs(a - b) <= LOSS_TOLERANCE * max(abs(a), abs(b))


def parts(line, name_of):
    """Returns the line with `#` for each number, and (text, titles) per number; titles is None if it may be any."""
    numbers = []

    def replace(found):
        rest = line[found.end():]
        name = name_of(*found.span())
        before = "".join(QUANTITY.findall(line[:found.start()])[-1:])
        measured = any(MEASURED.search(part) for part in name.split("\n")) or ":" in found[0]
        unit = UNIT.match(rest) and not (WHOLE_COUNT.match(rest) and "." not in found[0])
        numbers.append((found[0], None if measured or unit else f"{name}\n{before}"))
        return "#"

    line = MACHINE.sub(lambda found: "@" + " " * (len(found[0]) - 1), line)
    text = NUMBER.sub(replace, line)
    return re.sub(r"\s+", " ", re.sub(r"[-─]{3,}", "---", text)).strip(), numbers


def lines_agree(shown, printed, shown_name, printed_name):
    shown_text, shown_numbers = parts(shown, shown_name)
    printed_text, printed_numbers = parts(printed, printed_name)
    return shown_text == printed_text and len(shown_numbers) == len(printed_numbers) and all(
        name is None or numbers_agree(a, b, name) for (a, name), (b, _) in zip(shown_numbers, printed_numbers))


def unwrapped(lines):
    """Joins sentences that were wrapped at the width of a terminal, with an indent of two."""
    joined = []
    for line in lines:
        if joined and re.match(r"  \S", line) and SENTENCE.match(joined[-1]) and len(CELL.findall(line)) == 1:
            joined[-1] += line[1:]
        else:
            joined.append(line)
    return joined


def first_difference(shown, printed):
    """Returns the first differing (line of the page, printed line), None for a missing line; or None if all agree."""
    shown, printed = unwrapped(shown), unwrapped(printed)
    shown_names, printed_names = contexts(shown), contexts(printed)
    for at in range(max(len(shown), len(printed))):
        a, b = (lines[at] if at < len(lines) else None for lines in (shown, printed))
        if a is None or b is None or not lines_agree(a, b, shown_names[at], printed_names[at]):
            return a, b
    return None
