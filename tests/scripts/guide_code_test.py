#!/usr/bin/env python3
"""What the library's page shows of C++ and CMake stands in examples/, which scripts/check_install builds and runs."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/guide/library.md"
# (text in a block, where it is tried instead)
ELSEWHERE = (("FetchContent_Declare(Sherd SOURCE_DIR", "scripts/check_install"),)


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n")]


def shown(page: str) -> list[list[str]]:
    """The parts of each block of C++ or CMake, between lines that leave something out."""
    parts = []
    for block in re.findall(r"^```(?:cpp|cmake)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        parts += [part.strip().split("\n") for part in "\n".join(lines_of(block)).split("\n…\n")]
    return parts


def stands_in(part: list[str], files: list[str]) -> bool:
    return any("\n" + "\n".join(part) + "\n" in "\n" + text + "\n" for text in files)


class GuideCode(unittest.TestCase):
    def setUp(self) -> None:
        sources = [path for pattern in ("*.cpp", "*.h", "CMakeLists.txt") for path in (ROOT / "examples").glob(f"*/{pattern}")]
        self.files = ["\n".join(lines_of(path.read_text())) for path in sources]

    def test_it_is_compiled(self) -> None:
        parts = shown(PAGE.read_text())
        self.assertGreater(len(parts), 8)
        for part in parts:
            for text, place in ELSEWHERE:
                if any(text in line for line in part):
                    self.assertIn(text, (ROOT / place).read_text())
                    break
            else:
                self.assertTrue(stands_in(part, self.files), "no example has these lines:\n" + "\n".join(part))

    def test_a_changed_line_is_found(self) -> None:
        self.assertFalse(stands_in(["auto model = sherd::fully_shard(Mlp(4, kWidth), mesh);"], self.files))


if __name__ == "__main__":
    unittest.main()
