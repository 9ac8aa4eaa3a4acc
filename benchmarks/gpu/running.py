"""Runs jobs with time limits. Each result is written to results.json as soon as its job ends."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobs import TOOLS
from results import KEPT, read_as, said_of

LEAST_SECONDS = 20  # a job that could take longer is not started with less time than this


def write(path, value):
    """Replaces the file as a whole or not at all."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    os.replace(beside, path)


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def tool(name):
    """Path of a program of this system or of its CUDA toolkit, or None."""
    return shutil.which(name) or next(map(str, Path("/usr/local").glob(f"cuda*/bin/{name}")), None)


def folder_of_torch():
    """The torch package of python3, or None. Importing it also reads LibTorch and CUDA's libraries from disk, before any job needs them."""
    found = subprocess.run(["python3", "-c", "import torch; print(torch.__file__)"], capture_output=True, text=True)
    return Path(found.stdout.strip()).parent if found.returncode == 0 else None


def environment_of(place):
    """The environment in which programs find LibTorch, its CUDA libraries, Sherd's libraries and those that this system lacks."""
    if not place.is_gpu or place.torch is None:
        return dict(os.environ)  # each program's own run path
    missing = place.scratch / "missing"
    missing.mkdir(parents=True, exist_ok=True)
    ldconfig = shutil.which("ldconfig", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")  # not in every user's PATH
    there = subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout if ldconfig else ""
    for library in (place.root / "lib/others").glob("*.so*"):
        link = missing / library.name
        if f"\t{library.name} " not in there and not link.exists():
            link.unlink(missing_ok=True)  # of a folder that was moved
            link.symlink_to(library)
    cuda = sorted({str(file.parent) for file in place.torch.parent.glob("nvidia/*/lib/*.so*")})
    folders = [place.torch / "lib", place.root / "lib", *cuda, missing]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


class Runner:
    """`begin`: when the call began, by time.monotonic(); its last job has to end `seconds` later."""

    def __init__(self, place, out, environment, begin, seconds):
        self.place, self.path, self.environment, self.begin, self.until = place, out / "results.json", environment, begin, begin + seconds
        self.used_before = read(self.path.with_name("used.json")).get("seconds", 0)
        self.commit = read(place.root / "packed.json").get("commit", "unknown")

    def keep_used(self):
        """Seconds of this call so far, and of all calls with this folder. Kept after each job: a call may be killed."""
        of_call = time.monotonic() - self.begin
        write(self.path.with_name("used.json"), {"seconds": round(self.used_before + of_call, 1)})
        return of_call, self.used_before + of_call

    def remaining(self, jobs):
        """The jobs without a result."""
        records = read(self.path)
        return [job for job in jobs if job.name not in records]

    def forget_failures(self, jobs):
        names = {job.name for job in jobs}
        write(self.path, {name: one for name, one in read(self.path).items() if one["status"] == "passed" or name not in names})

    def run(self, jobs):
        """Returns how many jobs are left for another call."""
        left = 0
        for job in self.remaining(jobs):
            record = self.record_of(job)
            if record is None:
                left += 1
                continue
            records = read(self.path) | {job.name: record}
            write(self.path, records)
            self.keep_used()
            said = said_of(record, records)
            print(f"{record['status']:>8}  {record['seconds']:6.1f} s  {job.name}" + (f": {said}" if said else ""), flush=True)
        return left

    def record_of(self, job):
        """None where too little time is left for it."""
        begin = time.monotonic()
        record = {"group": job.group, "about": job.about, "commit": self.commit, "status": "skipped", "seconds": 0.0,
                  "reason": self.reason_to_skip(job)}
        if record["reason"]:
            return record
        if self.until - begin < min(LEAST_SECONDS, job.seconds):
            return None
        for more in [[], job.when_out_of_memory] if job.when_out_of_memory else [[]]:
            seconds = begin + job.seconds - time.monotonic()
            left = self.until - time.monotonic()
            tried = self.attempt(job, [*job.words, *more], min(seconds, left))
            if tried["status"] == "too long":
                if left < seconds:
                    return None
                tried["reason"] = f"stopped after {job.seconds} s"
            before = record["reason"]
            record.update(tried)
            if before and tried["status"] == "passed":
                record["first_attempt"] = before
            if tried["status"] != "failed" or "memory" not in tried["reason"]:
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
        for path in job.files():
            if not Path(path).exists():
                return f"{self.without_paths(path)} was not packed"
        return "python3 has no torch" if job.words[0] == "python3" and self.place.torch is None else ""

    def program(self, name):
        return self.place.root / "bin" / name

    def resolved(self, word):
        packed = self.program(word)
        return tool(word) if word in TOOLS else str(packed) if packed.is_file() else word

    def without_paths(self, text):
        for folder, name in ((f"{self.place.root}/", ""), (str(self.place.scratch), "SCRATCH"), (str(self.path.parent), "OUT")):
            text = text.replace(folder, name)
        return text

    def attempt(self, job, words, seconds):
        record = {"status": "passed", "reason": "", "exit_code": None, "command": self.without_paths(" ".join(words))}
        environment = self.environment if words[0] != "python3" else dict(os.environ)
        out, err = self.place.scratch / "stdout", self.place.scratch / "stderr"
        try:
            with open(out, "wb") as stdout, open(err, "wb") as stderr:
                process = subprocess.Popen([self.resolved(word) for word in words], env=environment, cwd=self.place.root,
                                           stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True)
        except OSError as error:
            return record | {"status": "failed", "reason": self.without_paths(str(error))}
        code = record["exit_code"] = wait(process, seconds)
        text, problems = (self.without_paths(file.read_text(errors="replace")) for file in (out, err))
        if code is None:
            return record | {"status": "too long"}
        if code != 0:
            return record | {"status": "failed", "reason": (f"{text}\n{problems}".strip() or f"exit code {code}")[-KEPT:]}
        return record | read_as(job.reads, text)


def wait(process, seconds):
    """Returns the exit code, or None if the process was stopped. Kills everything that it started."""
    code = None
    try:
        code = process.wait(timeout=max(seconds, 0))
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # the driver holds it: the other jobs still run
            pass
    return code


def machine(place):
    """What the figures were measured on."""
    version = (place.torch / "version.py").read_text().split("__version__ = '")[1].split("'")[0] if place.torch else None
    found = {"device": place.device, "date": time.strftime("%Y-%m-%d"), "processors": os.cpu_count(), "python": sys.version.split()[0],
             "torch": version, "packed": read(place.root / "packed.json")}
    names = ["name", "driver_version", "memory.total", "compute_cap"]
    if place.is_gpu:
        asked = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"], capture_output=True,
                               text=True)
        if asked.returncode == 0:
            found["gpu"] = dict(zip(names, asked.stdout.splitlines()[0].split(", ")))
    return found
