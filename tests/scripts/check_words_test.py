#!/usr/bin/env python3
"""What scripts/check_words.py refuses, in a small tree of its own."""
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_words.py"


class CheckWords(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("scripts", "include/sherd", "llm", "docs/guide"):
            (self.root / name).mkdir(parents=True)
        text = SCRIPT.read_text()
        begin = text.index("ALLOWED = {")
        end = text.index("\n}\n", begin)
        self.script = text[:begin] + 'ALLOWED = {"llm/old.cpp": "settle"' + text[end:]
        self.write("llm/old.cpp", "void settle();\n")

    def write(self, name, text):
        (self.root / name).write_text(text)

    def faults(self):
        self.write("scripts/check_words.py", self.script)
        ended = subprocess.run(["python3", self.root / "scripts/check_words.py"], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 1 if ended.stderr.strip() else 0, ended.stderr)
        return ended.stderr.strip().splitlines()

    def test_takes_plain_words(self):
        self.write("README.md", "Sherd prints the total per rank.\n\n    code of any length\n")
        self.write("include/sherd/a.h", "// Ranks work together, and disputes settle.\nint a;\n")
        self.assertEqual(self.faults(), [])

    def test_refuses_a_phrase_in_a_page_a_header_and_a_message(self):
        self.write("docs/guide/a.md", "One line.\nThe reason is\ntold to all.\n")
        self.write("include/sherd/a.h", "// 3 GiB a rank, and more.\n")
        self.write("llm/a.cpp", '// The reason is told.\nauto text = "bytes in all: ";\n')
        found = self.faults()
        self.assertEqual(len(found), 3, found)
        self.assertTrue(found[0].startswith('docs/guide/a.md:2: "is told"'), found[0])
        self.assertTrue(found[1].startswith('include/sherd/a.h:1: "a rank,"'), found[1])
        self.assertTrue(found[2].startswith('llm/a.cpp:2: "in all:"'), found[2])

    def test_refuses_an_identifier_in_code_alone(self):
        self.write("llm/a.cpp", '// A Door is open.\nauto text = "Door";\nclass Door {};\n')
        self.assertEqual(self.faults(), ["llm/a.cpp: the identifier Door: use the field's term (CONTRIBUTING.md)"])

    def test_the_list_of_allowed_names_only_shrinks(self):
        self.write("llm/old.cpp", "void wait();\n")
        self.assertEqual(self.faults(), ["llm/old.cpp: settle is gone; take it out of ALLOWED in scripts/check_words.py"])

    def test_refuses_sentences_of_more_than_40_words(self):
        self.write("README.md", "Short. Word " + "word " * 39 + "end.\n\n| " + "cell " * 20 + "| " + "cell " * 25 + "|\n")
        found = self.faults()
        self.assertEqual(len(found), 1, found)
        self.assertIn("README.md: 41 words in one sentence", found[0])


unittest.main()
