"""What scripts/skipped_tests prints of a log of ctest."""
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG = """1/3 Testing: files_test
[ RUN      ] Disk.IsFull
/src/tests/files/disk_test.cpp:84: Skipped
SKIPPED: a file system of 16 KiB needs the right to mount one

[  SKIPPED ] Disk.IsFull (0 ms)
[ RUN      ] Disk.IsThere
SKIPPED: what a test prints is no reason
[       OK ] Disk.IsThere (0 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Disk.IsFull
2/3 Testing: gpu_test
SKIPPED: no NVIDIA GPU here
3/3 Testing: e2e_test
[ RUN      ] Sizes/Disk.IsSmall/0
/src/tests/e2e/disk_test.cpp:9: Skipped
SKIPPED: a file system of 16 KiB needs the right to mount one
[  SKIPPED ] Sizes/Disk.IsSmall/0 (0 ms)
[ RUN      ] Silent.Test
/src/tests/e2e/silent_test.cpp:9: Skipped

[  SKIPPED ] Silent.Test (0 ms)
"""


class SkippedTests(unittest.TestCase):
    def test_are_counted_by_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "Testing/Temporary/LastTest.log"
            log.parent.mkdir(parents=True)
            log.write_text(LOG)
            printed = subprocess.run([ROOT / "scripts/skipped_tests", folder], check=True, capture_output=True,
                                     text=True).stdout
        self.assertEqual(printed.splitlines(), [
            "skipped tests: 4",
            "     2  a file system of 16 KiB needs the right to mount one (Disk.IsFull, ...)",
            "     1  no NVIDIA GPU here (gpu_test)",
            "     1  no reason given (Silent.Test)"])


if __name__ == "__main__":
    unittest.main()
