#pragma once
// What tests of stores share.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "llm/inputs/prepare.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/chosen_template.h"
#include "llm/text/records.h"
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

/// Of conversations too, by a template that ships, or another.
inline text::PromptEncoder chat_stories(std::int64_t max_length = 512,
                                        const std::string& source = "") {
  const std::filesystem::path model = sherd::test::data_folder() / "stories260k-hf";
  const auto tokenizer = text::Tokenizer::from_folder(model);
  const text::ChatTemplate chosen = source.empty() ? text::chat_template_of("zephyr", model).value()
                                                   : text::ChatTemplate::from_text("own", source);
  const auto chat =
      std::make_shared<const text::ChatEncoder>(tokenizer, chosen, text::ChatOptions{});
  return {tokenizer, {max_length, 32}, {.chat = chat}};
}

/// What evaluation is given of a file; nothing is kept.
inline Dataset dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                       const FileReading& reading = {}, const Limit& limit = {}) {
  const Source source = open_source(path, reading, {});
  return dataset_of(prepare(source, encoder, {.limit = limit, .keeps_records = true}), source);
}

/// The good records of a file as the readers of its format give them, on the side that is read.
inline text::QuestionFile whole(const std::filesystem::path& path, const FileReading& reading) {
  const DataFile file = read_data_file(path, reading);
  if (file.are_questions) {
    return parse_questions(file);
  }
  text::QuestionFile all;
  for (const NamedBytes& one : file.files) {
    const text::DataBytes bytes{one.name};
    text::QuestionFile some = text::read_records(bytes, record_reading_of(bytes, file.reading));
    keep_side(some, reading);
    all.unread.add(some.unread);
    std::move(some.questions.begin(), some.questions.end(), std::back_inserter(all.questions));
  }
  return all;
}

/// Their samples, encoded one record after the other.
inline std::vector<text::LabelledPrompt> encoded(const text::QuestionFile& records,
                                                 const text::PromptEncoder& encoder) {
  std::vector<text::LabelledPrompt> all;
  for (std::size_t i = 0; i < records.questions.size(); ++i) {
    std::vector<text::LabelledPrompt> some = encode_samples(records, i, encoder);
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  return all;
}

/// The samples of a store are these.
inline void expect_samples(const TokenStore& store,
                           const std::vector<text::LabelledPrompt>& expected) {
  ASSERT_EQ(store.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Sample found = store.at(i);
    ASSERT_TRUE(std::ranges::equal(found.ids, expected[i].ids)) << i;
    ASSERT_TRUE(std::ranges::equal(found.supervised, expected[i].supervised)) << i;
    EXPECT_EQ(found.cut, cut_of(expected[i]));
    EXPECT_EQ(store.length(i), std::ssize(expected[i].ids));
    EXPECT_EQ(store.supervised(i), found.supervised_tokens());
  }
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
