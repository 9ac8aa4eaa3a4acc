"""Runs every command of a page and compares its output with what the page shows.

Each line of a shell block is a command. A shell block is indented by four, or fenced without a language or with a shell's.
Commands run in the page's order, in a temporary copy of the repository. Each must end with code 0, or with the code that
the page shows. The copy links to `.deps` and `models`, where scripts/setup and scripts/real_model keep downloads.
Slow commands run only with --long. A command of EXCEPTIONS does not run: another one runs instead, which does as much of
it as possible, and must succeed. A command that running text mentions must exist.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

from guide_compare import first_difference
from guide_pages import Shell, commands_in, mentions_in, with_code

# Commands that take more than some seconds, or use the output of such a command, unless QUICK matches.
LONG = re.compile(r"\b(?:make|cmake|g\+\+) |scripts/(?:setup|real_model)"
                  r"|\bsherd (?:launch .*)?(?:train|sweep|check|bench|bandwidth)\b|\bruns/|build/(?!release/bin/sherd)")
QUICK = re.compile(r"my\.toml|\bruns/my\b|--no-submit|--dry-run|export PATH=")
# These write to build/release/bin, which must not be the folder of the tested programs.
BUILDS = re.compile(r"\b(?:make|cmake) ")

# (command, why it does not run, what runs instead)
EXCEPTIONS = [
    (r"scripts/setup --gpu", "fetches 4.1 GB, for GPUs alone",
     "bash -n scripts/setup && grep -q -- --gpu scripts/setup && grep -q sha256 scripts/gpu-requirements.txt"),
    (r"cmake --preset cuda\b.*", "compiles with nvcc, which make test-cuda does",
     "make -n test-cuda | grep -q -- '--preset cuda'"),
    (r"sherd sweep recipes/workshop/bloom-560m-hosts.toml --slurm (?!.*--no-submit).*",
     "needs Slurm and BLOOM-560M; the jobs it would submit are written",
     "sherd sweep recipes/workshop/bloom-560m-hosts.toml --slurm --no-submit --cpus-per-rank 8 -- --time=4:00:00"
     " && ls runs/workshop"),
]
# (command, what the machine may lack for it, a command that ends with a code of LACKS if the machine lacks it)
NEEDS = [
    (r".*scripts/two_hosts.*", "network namespaces", "scripts/two_hosts -- true"),
    (r".*(?:scripts/real_model|smollm2-135m).*", "a network that SmolLM2-135M can be fetched from", "scripts/real_model"),
]
LACKS = (69, 77)


def rule_for(rules, text):
    return next((rule for rule in rules if re.fullmatch(rule[0], text, re.DOTALL)), None)


def stripped(text):
    """A command without the comment at its end."""
    return re.sub(r"\s+#\s[^'\"]*$", "", text).strip()


def is_long(text):
    return bool(LONG.search(text)) and not QUICK.search(text)


def copy_of(root, programs, folder):
    """Copies all files that git does not ignore, and links the downloads and the programs."""
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard"], cwd=root, check=True,
                            capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file() or (root / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name, follow_symlinks=False)
    for name in (".deps", "models"):
        if (root / name).exists():
            (folder / name).symlink_to(root / name)
    (folder / "build/release").mkdir(parents=True)
    (folder / "build/release/bin").symlink_to(programs)


class Page:
    def __init__(self, root, page, programs, folder):
        self.name = os.path.relpath(page, root)
        self.text = page.read_text()
        self.copy = folder / "repository"
        copy_of(root, programs, self.copy)
        caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
        self.shell = Shell(self.copy, programs, folder / "state", XDG_CACHE_HOME=str(folder / "cache"), SHERD_BIN=str(programs),
                           CCACHE_DIR=os.environ.get("CCACHE_DIR", str(caches / "ccache")))
        self.used = set()
        self.failed = 0

    def report(self, what, line, code, text, *more):
        print(f"{what:7} {self.name}:{line}  exit {code}  $ {text}", *(f"\n          {entry}" for entry in more), flush=True)
        self.failed += what == "FAILED"

    def check_exception(self, command, exception):
        pattern, reason, instead = exception
        self.used.add(pattern)
        code, lines = self.shell.run(f"( {instead} )")
        self.report("FAILED" if code else "except", command.line, code, command.text, reason, f"instead: {instead}",
                    *(lines[-5:] if code else []))

    def run(self, command):
        if BUILDS.match(command.text) and (self.copy / "build/release/bin").is_symlink():
            (self.copy / "build/release/bin").unlink()
        begin = time.monotonic()
        code, lines = self.shell.run(command.text)
        took = f"{time.monotonic() - begin:.1f} s"
        if command.shown is None:
            self.report("FAILED" if code else "ok", command.line, code, command.text, took, *(lines[-10:] if code else []))
            return
        while command.shown and not command.shown[-1].strip():
            command.shown.pop()
        differing = first_difference(command.shown, with_code(code, lines))
        if not differing:
            self.report("ok", command.line, code, command.text, f"{took}, {len(command.shown)} lines as shown")
            return
        page, here = ("(no line)" if line is None else line for line in differing)
        self.report("FAILED", command.line, code, command.text, took, f"page: {page}", f"here: {here}")

    def check_command(self, command, long):
        text = stripped(command.text)
        exception = rule_for(EXCEPTIONS, text)
        needs = rule_for(NEEDS, text)
        if exception:
            self.check_exception(command, exception)
        elif is_long(text) and not long:
            self.report("long", command.line, "-", command.text)
        elif needs and self.shell.run(f"( {needs[2]} )")[0] in LACKS:
            print(f"SKIPPED: needs {needs[1]}: {self.name}:{command.line}", flush=True)
        else:
            self.run(command)

    def check_mention(self, mention):
        program, argument = re.sub(r"[,;:…].*", "", mention).split(" ")[:2]
        if program == "make":
            test = f"make -n {argument}"
        elif program == "sherd" and re.fullmatch("[a-z-]+", argument):
            test = f"sherd {argument} --help"
        else:
            test = f"command -v {program} || test -e {program}"
        for path in re.findall(r"(?<![\w/.-])(?:recipes|tests|docs|scripts|examples)/[\w./-]*\w", mention):
            test += f" && test -e {path}"
        code, lines = self.shell.run(f"( cd {self.copy} && {test} )")
        if code:
            self.report("FAILED", "text", code, mention, f"checked by: {test}", *lines[-3:])


def check(root, pages, programs, long, every_page):
    """Returns 1 if a command failed or printed something else, otherwise 0."""
    failed, used = 0, set()
    for path in pages:
        with tempfile.TemporaryDirectory(prefix="sherd-pages.") as folder:
            page = Page(root, path, programs, pathlib.Path(folder))
            for command in commands_in(page.text):
                page.check_command(command, long)
            for mention in mentions_in(page.text):
                page.check_mention(mention)
        failed += page.failed
        used |= page.used
    if every_page:
        for pattern, *_ in EXCEPTIONS:
            if pattern not in used:
                print(f"FAILED  an exception that no page needs: {pattern}")
                failed += 1
    print(f"{failed} failed" if failed else "all as the pages say")
    return 1 if failed else 0
