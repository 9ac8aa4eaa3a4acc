#pragma once
// Small data files for tests.

#include <filesystem>
#include <string>

#include "tests/support/temp_folder.h"

namespace llm::inputs {

inline std::string record(int number) {
  return R"({"prompt": "p)" + std::to_string(number) +
         R"(", "completion": "c"})"
         "\n";
}

inline std::string records(int first, int end) {
  std::string lines;
  for (int number = first; number < end; ++number) {
    lines += record(number);
  }
  return lines;
}

inline std::string squad(const std::string& id) {
  return R"({"data": [{"paragraphs": [{"context": "Lily ran.", "qas": [{"id": ")" + id +
         R"(", "question": "Who?", "answers": [{"text": "Lily", "answer_start": 0}]}]}]}]})";
}

/// Eleven records in three files, and what is none of them.
struct Split {
  Split() {
    folder.write("train-00001-of-00003.jsonl", records(4, 9));
    folder.write("train-00000-of-00003.jsonl", records(0, 4));
    folder.write("train-00002-of-00003.jsonl", records(9, 11));
    folder.write("test-00000-of-00001.jsonl", records(50, 52));
    folder.write(".train-00003-of-00003.jsonl", "hidden");
    std::filesystem::create_directory(folder.path() / "train-x.jsonl");
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder.path() / name).string();
  }
  sherd::test::TempFolder folder;
};

}  // namespace llm::inputs
