"""Finds the commands that a page shows, and runs them in a shell."""

import dataclasses
import os
import pathlib
import re
import subprocess

FENCE = re.compile(r" {0,3}(```+|~~~+)\s*([\w+-]*)")
SHELL_FENCES = ("", "sh", "bash", "shell", "console")
HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?(\w+)")
INLINE = re.compile(r"`([^`]+)`")
PROGRAM = re.compile(r"(sherd|make|cmake|scripts/\S+|recipes/\S+/\w+|build/\S+) \S")


@dataclasses.dataclass
class Command:
    line: int                   # its first line in the page, from 1
    text: str                   # without indent and `$ `
    shown: list | None = None   # the output that the page shows; None in a block without `$ `
    begin: int = 0              # the lines of `shown`, from 0: [begin, end)
    end: int = 0


def blocks(lines):
    """Yields (first line from 0, lines without indent) of each shell block: indented by four, or fenced without a
    language or with a shell's. The first line with `$ ` begins a new block."""
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence:
            end = at + 1
            while end < len(lines) and not lines[end].strip().startswith(fence[1]):
                end += 1
            if fence[2] in SHELL_FENCES:
                yield at + 1, lines[at + 1:end]
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            while not lines[end - 1].strip():
                end -= 1
            block = [line[4:] for line in lines[at:end]]
            shown = next((i for i, line in enumerate(block) if line.startswith("$ ")), len(block))
            yield at, block[:shown]
            yield at + shown, block[shown:]
            at = end
        else:
            at += 1


def command_lines(block, at):
    """Returns the number of lines of the command at block[at], with continuation lines and here-documents."""
    end = at + 1
    while block[end - 1].endswith("\\") and end < len(block):
        end += 1
    document = HERE_DOCUMENT.search("\n".join(block[at:end]))
    while document and end < len(block) and block[end - 1].strip() != document[1]:
        end += 1
    return end - at


def commands_in(text):
    """Returns each command of each shell block. In a block that begins with `$ `, its output follows each command."""
    found = []
    for first, block in blocks(text.split("\n")):
        shows_output = block[:1] and block[0].startswith("$ ")
        at = 0
        while at < len(block):
            if not block[at].strip() or block[at].lstrip().startswith("#"):
                at += 1
                continue
            count = command_lines(block, at)
            command = Command(first + at + 1, "\n".join(block[at:at + count]).removeprefix("$ "))
            at += count
            if shows_output:
                begin = at
                while at < len(block) and not block[at].startswith("$ "):
                    at += 1
                command.shown = block[begin:at]
                command.begin, command.end = first + begin, first + at
            found.append(command)
    return found


def mentions_in(text):
    """Returns the commands that running text and tables mention: `sherd plan`, `make test`."""
    prose = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = "\n".join(line for line in prose.split("\n") if not line.startswith("    "))
    spans = (" ".join(span.split()) for span in INLINE.findall(prose))
    return list(dict.fromkeys(span for span in spans if PROGRAM.match(span)))


class Shell:
    """Runs commands one after the other. Each keeps the exported variables and the folder of the one before."""

    def __init__(self, folder, programs, state, **variables):
        self.environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}", **variables)
        self.state = pathlib.Path(state)
        self.state.write_text(f"cd {folder}\n")

    def run(self, command):
        """Returns the exit code, and the lines of standard output and standard error together."""
        keep = 'source "$0"; trap \'code=$?; { export -p; printf "cd %q\\n" "$PWD"; } > "$0"; exit $code\' EXIT; eval "$1"'
        ended = subprocess.run(["bash", "-c", keep, self.state, command], env=self.environment, stdin=subprocess.DEVNULL,
                               text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lines = ended.stdout.rstrip("\n").split("\n") if ended.stdout else []
        return ended.returncode, [line.rstrip() for line in lines]


def with_code(code, lines):
    """Returns the output as pages show it."""
    return lines + ([f"[exit code {code}]"] if code else [])
