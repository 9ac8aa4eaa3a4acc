#include "llm/text/tokenizer.h"

#include <sstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using sherd::ExitCode;
using sherd::test::data_folder;
using sherd::test::expect_error;

Tokenizer stories_tokenizer() {
  return Tokenizer::from_folder(data_folder() / "stories260k-hf");
}

std::vector<nlohmann::json> cases_of(const std::filesystem::path& path) {
  std::istringstream lines(sherd::test::bytes_of(path));
  std::vector<nlohmann::json> cases;
  for (std::string line; std::getline(lines, line);) {
    cases.push_back(nlohmann::json::parse(line));
  }
  return cases;
}

// Ids of every case; and decoding gives the text back but for `lossy` cases.
void expect_parity(const Tokenizer& tokenizer, const std::filesystem::path& path, int lossy) {
  const std::vector<nlohmann::json> cases = cases_of(path);
  ASSERT_EQ(cases.size(), 511U);
  int not_restored = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto text = cases[i]["text"].get<std::string>();
    const auto ids = cases[i]["ids"].get<std::vector<TokenId>>();
    const auto with_special = cases[i]["ids_with_special"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text, SpecialTokens::Leave).ids, ids) << cases[i];
    EXPECT_EQ(tokenizer.encode(text, SpecialTokens::Add).ids, with_special) << cases[i];
    not_restored += tokenizer.decode(ids, /*skip_special_tokens=*/false) == text ? 0 : 1;
  }
  EXPECT_EQ(not_restored, lossy);
}

TEST(Tokenizer, GivesTheIdsOfTheGoldens) {
  // 14 cases hold special tokens' text or U+2581, which sentencepiece reads as a space.
  expect_parity(stories_tokenizer(), data_folder() / "goldens/tokenizer-stories260k.jsonl", 14);
}

TEST(Tokenizer, GivesTheIdsOfTheGoldensWithLlama3) {
  SHERD_NEEDS_EXTRA_DATA("llama3-tokenizer");
  const auto tokenizer = Tokenizer::from_folder(*sherd::test::extra_data("llama3-tokenizer"));
  EXPECT_EQ(tokenizer.vocabulary_size(), 128256);
  EXPECT_EQ(tokenizer.end_id(), 128001);
  expect_parity(tokenizer, *sherd::test::extra_data("goldens/tokenizer-llama3.jsonl"), 0);
}

TEST(Tokenizer, OffsetsAreBytesOfTheText) {
  const std::string text = "naïve 🦙 story";
  const Encoding encoding = stories_tokenizer().encode(text, SpecialTokens::Add);
  ASSERT_EQ(encoding.ids.size(), encoding.ranges.size());
  EXPECT_EQ(encoding.ranges.front(), ByteRange());  // <s> comes from no text
  std::int64_t covered = 0;
  for (std::size_t i = 1; i < encoding.ranges.size(); ++i) {
    const ByteRange& range = encoding.ranges[i];
    EXPECT_LE(range.begin, covered) << "a byte was left out before token " << i;
    EXPECT_GE(range.begin, encoding.ranges[i - 1].begin);
    covered = range.end;
  }
  EXPECT_EQ(covered, static_cast<std::int64_t>(text.size()));
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const Tokenizer tokenizer = stories_tokenizer();
  EXPECT_EQ(tokenizer.vocabulary_size(), 512);
  EXPECT_EQ(tokenizer.end_id(), 2);
  EXPECT_EQ(tokenizer.stop_ids(), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(tokenizer.token_to_id("</s>"), 2);
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
}

TEST(Tokenizer, DecodesWithAndWithoutSpecialTokens) {
  const Tokenizer tokenizer = stories_tokenizer();
  std::vector<TokenId> ids = tokenizer.encode("Once upon a time", SpecialTokens::Add).ids;
  ids.push_back(tokenizer.end_id());
  EXPECT_EQ(tokenizer.decode(ids), "Once upon a time");
  EXPECT_EQ(tokenizer.decode(ids, /*skip_special_tokens=*/false), "<s> Once upon a time</s>");
}

TEST(Tokenizer, IdsWithoutATokenDecodeToNothing) {
  const std::vector<TokenId> ids = {261, 512, 100000, -1, 261};
  EXPECT_EQ(stories_tokenizer().decode(ids), "a a");
}

TEST(Tokenizer, RefusesAModelWithTooFewRows) {
  const Tokenizer tokenizer = stories_tokenizer();
  tokenizer.check_vocabulary(512);
  tokenizer.check_vocabulary(600);  // padded embeddings are usual
  expect_error([&] { tokenizer.check_vocabulary(500); }, ExitCode::BadData,
               {"tokenizer.json", "reach 511", "500 rows", "too few by 12"});
}

TEST(Tokenizer, NamesTheByteOfBadUtf8) {
  expect_error([] { static_cast<void>(stories_tokenizer().encode("abc\xff")); }, ExitCode::BadData,
               {"not UTF-8 at byte 3"});
}

TEST(Tokenizer, SaysWhatIsMissing) {
  const sherd::test::TempFolder folder;
  const auto open = [&](const std::string& name) {
    return [&folder, name] { Tokenizer::from_folder(folder.path() / name); };
  };
  expect_error(open("nowhere"), ExitCode::InputMissing, {"nowhere/tokenizer.json", "No such file"});
  std::filesystem::create_directories(folder.path() / "odd" / "tokenizer.json");
  expect_error(open("odd"), ExitCode::BadData,
               {"odd/tokenizer.json: expected a regular file, found a folder"});
}

TEST(Tokenizer, MayBeUsedBySeveralThreads) {
  const Tokenizer tokenizer = stories_tokenizer();
  const Encoding expected = tokenizer.encode("Lily likes to play.");
  std::vector<std::thread> threads;
  std::vector<Encoding> found(4);
  for (Encoding& result : found) {
    threads.emplace_back([&tokenizer, &result] {
      for (int i = 0; i < 50; ++i) {
        result = tokenizer.encode("Lily likes to play.");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Encoding& result : found) {
    EXPECT_EQ(result.ids, expected.ids);
  }
}

}  // namespace
}  // namespace llm::text
