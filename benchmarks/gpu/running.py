"""Runs jobs with limits of time, and keeps what came of them: a file a stage, written after each job."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobs import TOOLS

LEAST_SECONDS = 20  # with fewer left nothing is begun
KEPT = 3000  # characters of what a job said


def write(path, value):
    """As a whole or not at all."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    os.replace(beside, path)


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def tool(name):
    """A program of this system, or of its CUDA toolkit; None where there is none."""
    return shutil.which(name) or next(map(str, Path("/usr/local").glob(f"cuda*/bin/{name}")), None)


def folder_of_torch():
    """Of LibTorch, as python3 finds it; None where there is none."""
    found = subprocess.run(["python3", "-c", "import torch; print(torch.__file__)"], capture_output=True, text=True)
    return Path(found.stdout.strip()).parent if found.returncode == 0 else None


def environment_of(root, scratch, torch):
    """In which the programs find LibTorch, its CUDA libraries, Sherd's and those that this system lacks."""
    if torch is None:
        return dict(os.environ)  # each program's own run path
    missing = scratch / "missing"
    missing.mkdir(exist_ok=True)
    there = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    for library in (root / "lib/others").glob("*.so*"):
        if f"\t{library.name} " not in there and not (missing / library.name).exists():
            (missing / library.name).symlink_to(library)
    cuda = sorted({str(file.parent) for file in torch.parent.glob("nvidia/*/lib/*.so*")})
    folders = [torch / "lib", root / "lib", *cuda, missing]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


class Runner:
    def __init__(self, place, out, environment, until):
        self.place, self.out, self.environment, self.until = place, out, environment, until

    def run_stage(self, stage, jobs, minutes):
        """Says how many jobs are left for another time."""
        path = self.out / f"{stage}.json"
        until = min(self.until, time.monotonic() + 60 * minutes)
        left = 0
        for job in jobs:
            records = read(path)
            if job.name in records:
                continue
            record = self.record_of(job, until)
            if record is None:
                left += 1
                continue
            print(f"{record['status']:>8}  {record['seconds']:6.1f} s  {job.name}" +
                  (f": {record['reason'].splitlines()[-1][:150]}" if record["reason"] else ""), flush=True)
            write(path, records | {job.name: record})
        return left

    def record_of(self, job, until):
        """None where there was too little time for it."""
        begin = time.monotonic()
        record = {"status": "skipped", "seconds": 0.0, "reason": self.reason_to_skip(job), "about": job.about}
        tries = [] if record["reason"] else [job.command, *job.otherwise]
        for command in tries:
            left = until - time.monotonic()
            if left < min(LEAST_SECONDS, job.seconds):
                return None
            seconds = min(job.seconds, left)
            tried = self.try_command(job, command, seconds)
            if tried["status"] == "too long" and seconds < job.seconds:
                return None
            before = record["reason"]
            record.update(tried)
            if tried["status"] == "passed":
                record["tried_before"] = before
            if "memory" not in tried["reason"]:  # all that another try has less of
                break
        record["seconds"] = round(time.monotonic() - begin, 2)
        return record

    def reason_to_skip(self, job):
        if job.needs_gpu and not self.place.is_gpu:
            return "needs a GPU"
        if self.place.is_gpu and job.needs_gib > self.place.gib:
            return f"needs {job.needs_gib:.0f} GiB or more, and this GPU has {self.place.gib:.0f}"
        for word in job.programs():
            if word in TOOLS and tool(word) is None:
                return f"there is no {word} here"
            if word not in TOOLS and not self.program(word).exists():
                return f"{word} was not packed"
        if job.command[0] == "python3" and folder_of_torch() is None:
            return "python3 has no torch"
        if job.needs_flag and job.needs_flag not in self.help_of(job.command[0]):
            return f"{job.command[0]} has no {job.needs_flag} yet"
        return ""

    def program(self, name):
        return self.place.root / "bin" / name

    def help_of(self, name):
        return subprocess.run([self.program(name), "--help"], env=self.environment, capture_output=True, text=True).stdout

    def words(self, command):
        threads = str(os.cpu_count() if self.place.is_gpu else 1)
        for word in command:
            packed = self.program(word)
            yield threads if word == "THREADS" else tool(word) if word in TOOLS else str(packed) if packed.is_file() else word

    def without_paths(self, text):
        return text.replace(f"{self.place.root}/", "").replace(str(self.place.scratch), "SCRATCH")

    def try_command(self, job, command, seconds):
        words = list(self.words(command))
        record = {"status": "passed", "reason": "", "exit_code": None,
                  "command": self.without_paths(" ".join(name if name in TOOLS else word for name, word in zip(command, words)))}
        environment = self.environment if command[0] != "python3" else dict(os.environ)
        out, err = self.place.scratch / "stdout", self.place.scratch / "stderr"
        try:
            with open(out, "wb") as stdout, open(err, "wb") as stderr:
                process = subprocess.Popen(words, env=environment, cwd=self.place.root, stdin=subprocess.DEVNULL, stdout=stdout,
                                           stderr=stderr, start_new_session=True)
        except OSError as error:
            return record | {"status": "failed", "reason": self.without_paths(str(error))}
        code = record["exit_code"] = wait(process, seconds)
        text, problems = (self.without_paths(file.read_text(errors="replace")) for file in (out, err))
        if code is None:
            return record | {"status": "too long", "reason": f"stopped after {seconds:.0f} s"}
        if code != 0:
            return record | {"status": "failed", "reason": (f"{text}\n{problems}".strip() or f"exit code {code}")[-KEPT:]}
        return record | (result_in(text) if job.has_result else said(text))


def result_in(text):
    """The last line of JSON."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        return {"result": json.loads(lines[-1])}
    except (IndexError, ValueError):
        return {"status": "failed", "reason": f"it printed no line of JSON:\n{text[-KEPT:]}".strip()}


def said(text):
    """Of tests."""
    if "[  SKIPPED ]" in text and "[       OK ]" not in text:
        return {"status": "skipped", "reason": "the program skipped its tests", "said": text[-KEPT:]}
    return {"said": text[-KEPT:]}


def wait(process, seconds):
    """The exit code, or None of one that was stopped. Nothing that it started is left."""
    code = None
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return code


def machine(place, torch):
    """What the figures are of."""
    found = {"device": place.device, "date": time.strftime("%Y-%m-%d"), "processors": os.cpu_count(), "python": sys.version.split()[0],
             "torch": (torch / "version.py").read_text().split("__version__ = '")[1].split("'")[0] if torch else None,
             "packed": read(place.root / "packed.json")}
    names = ["name", "driver_version", "memory.total", "compute_cap"]
    if place.is_gpu:
        asked = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"], capture_output=True,
                               text=True)
        if asked.returncode == 0:
            found["gpu"] = dict(zip(names, asked.stdout.splitlines()[0].split(", ")))
    return found
