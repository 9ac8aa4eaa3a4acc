#pragma once
// What tests of stores share.

#include <filesystem>
#include <fstream>
#include <string>

#include "llm/inputs/prepare.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::inputs {

inline const std::filesystem::path kQuestions = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json";

inline text::PromptEncoder encoder(const std::filesystem::path& folder,
                                   std::int64_t max_length = 512, std::int64_t max_answer = 32) {
  return {text::Tokenizer::from_folder(folder), {max_length, max_answer}};
}

inline text::PromptEncoder stories(std::int64_t max_length = 512, std::int64_t max_answer = 32) {
  return encoder(sherd::test::data_folder() / "stories260k-hf", max_length, max_answer);
}

/// The only store in a folder.
inline std::filesystem::path store_in(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".store") {
      return entry.path();
    }
  }
  return {};
}

/// Records of which each is another, with some that are bad, too long, or there twice.
inline std::string many_records(int records) {
  std::string lines;
  for (int i = 0; i < records; ++i) {
    const std::string number = std::to_string(i % 97 == 0 ? 7 : i);
    lines += i % 50 == 49 ? "{\"prompt\": \"no completion\"}\n"
                          : R"({"prompt": "Once upon a time there was a child with )" + number +
                                R"( stones.", "completion": "It had )" + number + " of them.\"}\n";
  }
  return lines;
}

}  // namespace llm::inputs
