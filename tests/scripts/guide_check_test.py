"""Tests of scripts/guide_output.py: which commands it finds, how it runs them, and which differences it reports."""
import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import guide_check  # noqa: E402
import guide_compare  # noqa: E402
import guide_pages  # noqa: E402


def checked(page, long=False, every_page=False, exceptions=()):
    """The result of a check of this page in a repository of its own, what was said, and the repository's files."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        subprocess.run(["git", "init", "-q", folder], check=True)
        (root / ".gitignore").write_text(".deps\nmodels\n")
        (root / "PAGE.md").write_text(page)
        (root / "folder").mkdir()
        (root / "folder/file").write_text("in a folder\n")
        (root / "link").symlink_to("folder")
        said = io.StringIO()
        with contextlib.redirect_stdout(said), mock.patch.object(guide_check, "EXCEPTIONS", list(exceptions)):
            result = guide_check.check(root, [root / "PAGE.md"], root / "bin", long, every_page)
        files = sorted(path.name for path in root.iterdir() if path.name != ".git")
        return result, said.getvalue(), files


class Commands(unittest.TestCase):
    def test_are_found_in_every_shell_block(self):
        page = "\n".join([
            "text", "", "    one --a \\", "        --b    # why", "    two", "", "```", "three", "```", "```toml", "[four]", "```",
            "", "    $ five", "    its output", "", "    more of it", "    $ six", "", "```sh", "cat > f <<'END'", "seven", "END", "eight", "```"])
        found = [(command.line, command.text.split("\n")[0], command.shown) for command in guide_pages.commands_in(page)]
        self.assertEqual(found, [
            (3, "one --a \\", None), (5, "two", None), (8, "three", None), (14, "five", ["its output", "", "more of it"]),
            (18, "six", []), (21, "cat > f <<'END'", None), (24, "eight", None)])

    def test_in_text_are_mentions(self):
        self.assertEqual(guide_pages.mentions_in("Run `make\nsoak`, or `sherd plan`; not `train.output`.\n\n    `sherd x`\n"),
                         ["make soak", "sherd plan"])

    def test_run_in_a_copy_one_after_the_other(self):
        result, said, files = checked("    export WORD=hello\n    mkdir made && cd made\n\ntext\n\n    $ echo $WORD $(basename $(pwd -P))\n    hello made\n")
        self.assertEqual(result, 0, said)
        self.assertEqual(files, [".gitignore", "PAGE.md", "folder", "link"])

    def test_see_the_files_of_links(self):
        self.assertEqual(checked("    $ cat link/file\n    in a folder\n")[0], 0)

    def test_that_fail_are_reported(self):
        result, said, _ = checked("    echo reason; exit 3\n")
        self.assertEqual(result, 1)
        self.assertIn("FAILED  PAGE.md:1  exit 3  $ echo reason; exit 3", said)
        self.assertIn("reason", said.splitlines()[2])

    def test_may_end_with_the_code_that_is_shown(self):
        self.assertEqual(checked("    $ echo a; exit 3\n    a\n    [exit code 3]\n")[0], 0)
        self.assertEqual(checked("    $ echo a; exit 4\n    a\n    [exit code 3]\n")[0], 1)
        self.assertEqual(checked("    $ echo a; exit 3\n    a\n")[0], 1)

    def test_print_what_is_shown(self):
        result, said, _ = checked("    $ printf 'a\\nc\\n'\n    a\n    b\n")
        self.assertEqual(result, 1)
        self.assertIn("page: b", said)
        self.assertIn("here: c", said)

    def test_that_are_slow_run_with_long(self):
        result, said, _ = checked("    sherd train no.toml\n")
        self.assertEqual(result, 0)
        self.assertIn("long    PAGE.md:1", said)
        self.assertEqual(checked("    sherd train no.toml\n", long=True)[0], 1)

    def test_that_cannot_run_are_excepted_by_another_that_does(self):
        exception = ("buy a GPU", "too dear", "true")
        self.assertEqual(checked("    buy a GPU   # soon\n", every_page=True, exceptions=[exception])[0], 0)
        self.assertEqual(checked("    buy a GPU\n", exceptions=[("buy a GPU", "too dear", "false")])[0], 1)
        result, said, _ = checked("    true\n", every_page=True, exceptions=[exception])
        self.assertEqual(result, 1)
        self.assertIn("an exception that no page needs: buy a GPU", said)

    def test_that_the_machine_lacks_something_for_are_skipped(self):
        for code, result, said in ((77, 0, "SKIPPED: needs luck: PAGE.md:1"), (1, 1, "FAILED"), (0, 1, "FAILED")):
            with mock.patch.object(guide_check, "NEEDS", [("win", "luck", f"exit {code}")]):
                ended = checked("    win\n")
            self.assertEqual(ended[0], result)
            self.assertIn(said, ended[1])

    def test_that_are_mentioned_exist(self):
        self.assertEqual(checked("`make nothing-of-this-name`\n")[0], 1)
        self.assertEqual(checked("`recipes/none/experiments hosts`\n")[0], 1)


class Outputs(unittest.TestCase):
    def agree(self, shown, printed):
        return guide_compare.first_difference(shown.split("\n"), printed.split("\n")) is None

    def test_agree_but_for_time_memory_and_speed(self):
        line = "step 3/12  loss {}  {} samples/s  {}  {} MiB  {}"
        shown = line.format("2.811", "81.9", "0.5 s", "338", "00:00:01")
        self.assertTrue(self.agree(shown, line.format("2.80", "9", "12 s", "1,338", "01:00")))
        self.assertFalse(self.agree(shown, line.format("2.0", "81.9", "0.5 s", "338", "00:00:01")))
        self.assertFalse(self.agree(shown, shown.replace("step 3/12", "step 4/12")))
        self.assertFalse(self.agree(shown, shown.replace("loss", "eval loss")))
        self.assertFalse(self.agree("32 samples", "33 samples"))

    def test_agree_in_losses_near_zero(self):
        self.assertTrue(self.agree("loss 6.3488 -> 0.0009", "loss 6.3488 -> 0.0011"))
        self.assertFalse(self.agree("loss 0.0009", "loss 0.0209"))
        self.assertFalse(self.agree("loss 0.0009 | lr 0.0024", "loss 0.0009 | lr 0.0012"))

    def test_agree_in_scores_within_some_points(self):
        self.assertTrue(self.agree("EM 30.0 (0.0 at the start), F1 44.6", "EM 34.0 (2.0 at the start), F1 41.9"))
        self.assertFalse(self.agree("EM 30.0", "EM 0.0"))

    def test_agree_by_the_heads_of_columns(self):
        table = "run  train loss  runtime s  speed-up\na         3.665    {}     {}"
        self.assertTrue(self.agree(table.format("28.50", "1.00"), table.format(" 9.10", "0.88")))
        self.assertFalse(self.agree(table.format("28.50", "1.00"), table.format("28.50", "1.00").replace("3.665", "4.665")))
        self.assertTrue(self.agree("a step, ms   all  wait\none         82.2   0.1", "a step, ms   all  wait\none         12.2   3.1"))
        self.assertTrue(self.agree("           one    two\nEM        30.0   34.0\npeak MiB   300    100", "           one    two\nEM        32.0   30.0\npeak MiB   900    800"))

    def test_agree_by_heads_of_several_lines(self):
        table = "                      program  peak\nrun        strategy       MiB   MiB  loss\n1-baseline no_shard      {}   {}  {}\n"
        self.assertTrue(self.agree(table.format(" 33.1", "233.5", "3.665"), table.format("160.0", "433.5", "3.660")))
        self.assertFalse(self.agree(table.format(" 33.1", "233.5", "3.665"), table.format(" 33.1", "233.5", "4.665")))
        phases = "time of a step, ms\nrun          all  data\n1-baseline  {}   0.1"
        self.assertTrue(self.agree(phases.format("82.2"), phases.format("12.2")))

    def test_agree_however_sentences_are_broken(self):
        one = "Speed: With 2 ranks: 0.74 x (3-disk) to 1.01 x\n  (3-full); with 4 ranks: 0.64 x (four)."
        self.assertTrue(self.agree(one, "Speed: With 2 ranks: 0.9 x (3-hybrid) to 1.1 x (3-full); with\n  4 ranks: 0.64 x (four)."))
        self.assertFalse(self.agree(one, "Speed: With 3 ranks: 0.9 x (3-hybrid) to 1.1 x (3-full); with\n  4 ranks: 0.64 x (four)."))

        losses = "Losses: 1-baseline, 2-fsdp agree. 3-full differs by at most 0.11 %. 4-four-ranks has\n  other steps."
        self.assertTrue(self.agree(losses, "Losses: 1-baseline, 2-fsdp agree. 3-full differs by less than 0.001 %.\n  4-four-ranks has other steps."))

    def test_lacking_a_line_do_not_agree(self):
        self.assertEqual(guide_compare.first_difference(["a"], ["a", "b"]), (None, "b"))
        self.assertEqual(guide_compare.first_difference(["a", "b"], ["a"]), ("b", None))


class Rewriting(unittest.TestCase):
    def test_replaces_outputs_and_keeps_the_rest(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "PAGE.md"
            page.write_text("text\n\n    [table]\n\n    $ echo a \\\n      b\n    old\n    $ exit 3\n\ntext\n\n    make x\n\nend\n")
            subprocess.run([sys.executable, ROOT / "scripts/guide_output.py", page], check=True, capture_output=True)
            self.assertEqual(page.read_text(), "text\n\n    [table]\n\n    $ echo a \\\n      b\n    a b\n    $ exit 3\n    [exit code 3]\n\ntext\n\n    make x\n\nend\n")


if __name__ == "__main__":
    unittest.main()
