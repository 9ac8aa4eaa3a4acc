"""costs_test.py BUILD: every name in tests/costs.txt is that of a test in this build, which has all layers."""
import json
import pathlib
import subprocess
import sys
import unittest

COSTS = pathlib.Path(__file__).resolve().parents[1] / "costs.txt"


class Costs(unittest.TestCase):
    build = ""

    def test_names_are_those_of_tests(self):
        shown = subprocess.run(["ctest", "--show-only=json-v1", "--test-dir", self.build], check=True, capture_output=True, text=True).stdout
        tests = {test["name"] for test in json.loads(shown)["tests"]}
        costs = [line.split() for line in COSTS.read_text().splitlines() if not line.startswith("#")]
        self.assertGreater(len(costs), 0)
        unknown = sorted({name for _, name in costs} - tests)
        self.assertEqual(unknown, [], f"{COSTS} names tests that do not exist: rename or delete these lines")
        self.assertEqual(len({name for _, name in costs}), len(costs), f"{COSTS} names a test twice")


if __name__ == "__main__":
    Costs.build = sys.argv.pop()
    unittest.main()
