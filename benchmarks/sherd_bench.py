"""Runs of `sherd bench`, for the programs beside this one."""
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("SHERD_BIN", ROOT / "build/release/bin"))


def last_json(command, threads=1, environment=None):
    """What the last line of its output says; ends the program where it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), **(environment or {})))
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{Path(sys.argv[0]).name}: {' '.join(str(word) for word in command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(lines[-1])


def bench(*flags, threads=1):
    return last_json([BIN / "sherd", "bench", "--json", "--threads", threads, "--dtype", "bf16", "--max-minutes", "none", *flags], threads)


def disk_bytes(*flags):
    """What a run reads from disks and writes to them, its ranks together."""
    command = [BIN / "sherd", "bench", "--json", "--dtype", "bf16", "--max-minutes", "none", *flags]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    last_json(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 512 * (after.ru_inblock - before.ru_inblock), 512 * (after.ru_oublock - before.ru_oublock)


def peak_mib(result):
    """Of the rank with most, with shared pages divided."""
    return max(result["peak_rank_pss_bytes"]) / 2**20


def planned_mib(result):
    """The same by plan, with what a process holds beside its training."""
    return (result["planned_peak_bytes"] + max(result["constant_rank_pss_bytes"])) / 2**20


def same_bits(result, other):
    return result["losses"] == other["losses"] and result["grad_norms"] == other["grad_norms"]


def write_config(folder, path, changes):
    """A shape of this repository, changed, as a file in a folder."""
    source = ROOT / path
    config = Path(folder) / "config.json"
    config.write_text(json.dumps(json.loads((source / "config.json" if source.is_dir() else source).read_text()) | changes))
    return config
