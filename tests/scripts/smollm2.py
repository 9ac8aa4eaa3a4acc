"""Helpers of tests that train SmolLM2-135M-Instruct with the program in SHERD_BIN."""
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHERD = pathlib.Path(os.environ.get("SHERD_BIN", ROOT / "build/release/bin")).resolve() / "sherd"
SKIPPED = 77
NO_NETWORK = 69


def sherd(*arguments):
    subprocess.run([SHERD, *map(str, arguments)], check=True)


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def run_test(test):
    """Fetches the model and calls `test` with a folder for its files. Returns the exit status for ctest."""
    code = subprocess.run([ROOT / "scripts/real_model"]).returncode
    if code == NO_NETWORK:
        print("SKIPPED: the model could not be fetched")
        return SKIPPED
    assert code == 0, code
    with tempfile.TemporaryDirectory() as name:
        test(pathlib.Path(name))
    return 0
