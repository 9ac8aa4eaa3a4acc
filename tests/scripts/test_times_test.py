"""What scripts/test_times prints of logs of ctest and of a list of parts."""
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG = """1/2 Testing: files_test
[ RUN      ] Disk.IsFull
[       OK ] Disk.IsFull (1500 ms)
[ RUN      ] Sizes/Disk.IsSmall/0
[       OK ] Sizes/Disk.IsSmall/0, where GetParam() = 4 (20 ms)
[----------] 2 tests from Disk (1520 ms total)
Test time =   1.75 sec
----------------------------------------------------------
2/2 Testing: world_test
[ RUN      ] World.Waits
[  SKIPPED ] World.Waits (3000 ms)
Test time =  12.00 sec
"""


class TestTimes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for build, log in (("asan", LOG), ("release", LOG.replace("12.00", " 0.50"))):
            place = self.folder / build / "Testing/Temporary/LastTest.log"
            place.parent.mkdir(parents=True)
            place.write_text(log)

    def printed(self, *words):
        return subprocess.run([ROOT / "scripts/test_times", *words], check=True, capture_output=True, text=True,
                              cwd=self.folder).stdout.splitlines()

    def test_programs_and_cases_of_all_folders_are_sorted(self):
        self.assertEqual(self.printed("asan", "release", "not_run"), [
            "",
            "test programs by time (4 of 4, 16 s in total)",
            "     12.0 s  world_test  (asan)",
            "      1.8 s  files_test  (release)",
            "      1.8 s  files_test  (asan)",
            "      0.5 s  world_test  (release)",
            "",
            "test cases by time (4 of 4, 3 s in total)",
            "      1.5 s  files_test: Disk.IsFull  (release)",
            "      1.5 s  files_test: Disk.IsFull  (asan)",
            "      0.0 s  files_test: Sizes/Disk.IsSmall/0  (release)",
            "      0.0 s  files_test: Sizes/Disk.IsSmall/0  (asan)"])

    def test_only_the_longest_are_shown_where_asked(self):
        self.assertEqual(self.printed("--longest", "1", "asan"), [
            "",
            "test programs by time (1 of 2, 14 s in total)",
            "     12.0 s  world_test  (asan)",
            "",
            "test cases by time (1 of 2, 2 s in total)",
            "      1.5 s  files_test: Disk.IsFull  (asan)"])

    def test_costs_are_those_of_the_slowest_build(self):
        lines = self.printed("--costs", "release", "asan")
        self.assertEqual(lines[1:], ["12  world_test"])

    def test_parts_are_summed(self):
        (self.folder / "parts").write_text("100\t180\tsanitizers\n60.4\t20\tinstall\n")
        lines = self.printed("--parts", "parts")
        self.assertEqual([line.split() for line in lines[1:]], [
            ["sanitizers", "100", "180", "1.80"], ["install", "60", "20", "0.33"], ["total", "160", "200", "1.25"]])

    def test_what_did_not_run_is_no_fault(self):
        self.assertEqual(self.printed("not_run"), [])


if __name__ == "__main__":
    unittest.main()
