#include "llm/text/tokenizer.h"

#include <fstream>
#include <sstream>
#include <string>
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

// A text may be encoded in two parts where such a token begins, and nowhere else.
TEST(Tokenizer, NamesTokensAtWhichATextMayBeParted) {
  const Tokenizer tokenizer = stories_tokenizer();
  EXPECT_TRUE(tokenizer.is_boundary(tokenizer.token_to_id("<s>").value()));
  EXPECT_FALSE(tokenizer.is_boundary(tokenizer.encode("a").ids.back()));
  const auto whole = tokenizer.encode_whole("Lily</s> likes </s>to");
  auto parts = tokenizer.encode_whole("Lily</s> likes ").ids;
  const auto rest = tokenizer.encode_whole("</s>to").ids;
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(whole.ids, parts);

  // Not where the token takes blanks before it, or is found after normalisation.
  const sherd::test::TempFolder folder;
  auto file =
      nlohmann::json::parse(sherd::test::bytes_of(data_folder() / "stories260k-hf/tokenizer.json"));
  for (const char* setting : {"lstrip", "normalized", "single_word"}) {
    auto other = file;
    other["added_tokens"][2][setting] = true;
    std::ofstream(folder.path() / "tokenizer.json") << other;
    EXPECT_FALSE(Tokenizer::from_folder(folder.path()).is_boundary(2)) << setting;
    EXPECT_TRUE(Tokenizer::from_folder(folder.path()).is_boundary(1)) << setting;
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsShadowMemory = true;
#else
constexpr bool kCountsShadowMemory = false;
#endif

// MiB that a process has of its own.
double own_mebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) {
      return std::stod(line.substr(8)) / 1024;
    }
  }
  return 0;
}

// Reading a tokenizer makes several times what stays: each rank would keep that.
TEST(Tokenizer, TakesNoMoreMemoryThanItNeeds) {
  SHERD_NEEDS_EXTRA_DATA("llama3-tokenizer");
  if (kCountsShadowMemory) {
    GTEST_SKIP() << "the shadow memory of a sanitizer counts as well";
  }
  const double before = own_mebibytes();
  const auto tokenizer = Tokenizer::from_folder(*sherd::test::extra_data("llama3-tokenizer"));
  EXPECT_LT(own_mebibytes() - before, 64);
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
