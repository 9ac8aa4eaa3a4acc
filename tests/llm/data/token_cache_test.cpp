#include "llm/data/token_cache.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::data {
namespace {

namespace fs = std::filesystem;
using sherd::test::TempFolder;

const fs::path kQuestions = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json";

text::PromptEncoder encoder(const fs::path& folder, std::int64_t max_length = 512,
                            std::int64_t max_answer = 32) {
  return {text::Tokenizer::from_folder(folder), {max_length, max_answer}};
}

text::PromptEncoder stories(std::int64_t max_length = 512, std::int64_t max_answer = 32) {
  return encoder(sherd::test::data_folder() / "stories260k-hf", max_length, max_answer);
}

TokenizedFile tokens() {
  const DataFile file = read_data_file(kQuestions);
  return tokenize(questions_of(file, {7}), file, stories(200, 8));
}

TEST(TokenCache, GivesBackWhatWasWritten) {
  const TempFolder folder;
  const TokenCache cache((folder.path() / "not/there/yet").string());
  const TokenizedFile expected = tokens();
  EXPECT_FALSE(cache.find("key", "a name"));
  EXPECT_EQ(cache.write("key", expected), "");
  const auto found = cache.find("key", "a name");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->samples.size(), 7U);
  std::int64_t cut = 0;
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_THAT(found->samples[i].ids, testing::ElementsAreArray(expected.samples[i].ids));
    EXPECT_TRUE(std::ranges::equal(found->samples[i].supervised, expected.samples[i].supervised));
    EXPECT_EQ(found->samples[i].cut, expected.samples[i].cut);
    cut += found->samples[i].cut.prompt_tokens;
  }
  EXPECT_GT(cut, 0);
  DatasetReport report = expected.report;
  report.name = "a name";
  EXPECT_EQ(found->report.sentence(), report.sentence());
  EXPECT_FALSE(cache.find("other key", "a name"));
}

TEST(TokenCache, WhoseFileBecomesShorterIsNamed) {
  const TempFolder folder;
  const TokenCache cache(folder.path().string());
  EXPECT_EQ(cache.write("key", tokens()), "");
  const auto found = cache.find("key", "a name");
  ASSERT_TRUE(found);
  const fs::path file = folder.path() / "key.tokens";
  fs::resize_file(file, 0);
  sherd::test::expect_error([&] { static_cast<void>(found->samples[6]); },
                            sherd::ExitCode::StorageIo, {file.string(), "became shorter"});
}

TEST(TokenCache, KnowsRecordsAndHowManyWereSkipped) {
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\nbad\n");
  const DataFile file = read_data_file(lines, {.bad = {.skip = true}});
  const TokenizedFile expected = tokenize(questions_of(file, {}), file, stories());
  const TokenCache cache(folder.path().string());
  ASSERT_EQ(cache.write("key", expected), "");
  const auto found = cache.find("key", "a.jsonl");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->report.skipped, 1);
  EXPECT_THAT(found->report.sentence(),
              testing::AllOf(testing::HasSubstr("1 record, "),
                             testing::EndsWith("; 1 bad sample skipped")));
  DatasetReport report = expected.report;
  report.name = "a.jsonl";
  EXPECT_EQ(found->report.sentence(), report.sentence());
}

TEST(TokenCache, KnowsWhichQuestionsDidNotFit) {
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", R"({"prompt": "🦙", "completion": "b"})"
                                             "\n"
                                             R"({"prompt": "a", "completion": "b"})");
  const DataFile file = read_data_file(lines, {.bad = {.skip = true}});
  const auto tight = stories(11, 8);
  const TokenizedFile made = tokenize(questions_of(file, {}), file, tight);
  const TokenCache cache(folder.path().string());
  ASSERT_EQ(cache.write("key", made), "");
  const auto found = cache.find("key", "a.jsonl");
  ASSERT_TRUE(found);
  EXPECT_THAT(found->report.unfit, testing::ElementsAre(0));
  ASSERT_EQ(found->samples.size(), 1U);
  EXPECT_THAT(found->samples[0].ids, testing::ElementsAreArray(made.samples[0].ids));
  const text::QuestionFile questions = questions_of(file, {}, found->report, tight);
  EXPECT_EQ(questions.questions[0].id, "line 2");
  EXPECT_EQ(questions.skipped[0].place, "1");
}

TEST(TokenCache, HasNothingWhereTheFileIsDamaged) {
  const TempFolder folder;
  const TokenCache cache(folder.path().string());
  ASSERT_EQ(cache.write("key", tokens()), "");
  const fs::path path = folder.path() / "key.tokens";
  const std::string good = sherd::test::bytes_of(path);
  for (const std::size_t place : std::vector<std::size_t>{0, 70, 90, 200, good.size() - 1}) {
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ 1);
    folder.write("key.tokens", bad);
    EXPECT_FALSE(cache.find("key", "")) << "byte " << place;
  }
  for (const std::size_t size : std::vector<std::size_t>{0, 10, 160, good.size() - 4}) {
    folder.write("key.tokens", good.substr(0, size));
    EXPECT_FALSE(cache.find("key", "")) << size << " bytes";
  }
  folder.write("key.tokens", good);
  EXPECT_TRUE(cache.find("key", ""));
}

TEST(TokenCache, SaysWhyItCannotKeep) {
  const TempFolder folder;
  const auto file = folder.write("file", "");
  EXPECT_EQ(TokenCache(file.string()).write("key", tokens()),
            file.string() + " cannot be written to: " + file.string() +
                "/key.tokens: cannot be created: Not a directory");
}

TEST(TokenCache, KeepsNothingWhereItHasNoFolder) {
  const TokenCache none("none");
  EXPECT_TRUE(none.folder().empty());
  EXPECT_EQ(none.write("key", tokens()), "");
  EXPECT_FALSE(none.find("key", ""));
}

TEST(TokenKey, ChangesWithAllThatSamplesDependOn) {
  const TempFolder folder;
  const auto same = folder.write("other.json", sherd::test::bytes_of(kQuestions));
  const std::string key = token_key(read_data_file(kQuestions), stories(), {0});
  EXPECT_EQ(key.size(), 64U);
  EXPECT_EQ(token_key(read_data_file(same), stories(), {0}), key);  // contents, not names
  std::ofstream(same, std::ios::app) << " ";
  EXPECT_NE(token_key(read_data_file(same), stories(), {0}), key);
  EXPECT_NE(token_key(read_data_file(kQuestions), stories(511), {0}), key);
  EXPECT_NE(token_key(read_data_file(kQuestions), stories(512, 31), {0}), key);
  EXPECT_NE(token_key(read_data_file(kQuestions), stories(), {5}), key);
  const Limit drawn = {5, true, 1};
  EXPECT_NE(token_key(read_data_file(kQuestions), stories(), drawn),
            token_key(read_data_file(kQuestions), stories(), {5}));
  EXPECT_NE(token_key(read_data_file(kQuestions), stories(), drawn),
            token_key(read_data_file(kQuestions), stories(), {5, true, 2}));

  const auto lines = folder.write("a.jsonl", R"({"p": "a", "q": "b"})");
  const auto key_of = [&](const FileReading& reading) {
    return token_key(read_data_file(lines, reading), stories(), {0});
  };
  const std::string of_lines = key_of({.columns = {"p", "q"}});
  EXPECT_NE(key_of({.columns = {"q", "p"}}), of_lines);
  EXPECT_NE(key_of({.columns = {"pq", ""}}), of_lines);
  EXPECT_NE(key_of({config::DataFormat::Json, {"p", "q"}}), of_lines);
  EXPECT_NE(key_of({config::DataFormat::Squad, {"p", "q"}}), of_lines);
  EXPECT_EQ(key_of({.columns = {"p", "q"}, .bad = {.skip = true}}), of_lines);

  const fs::path model = sherd::test::data_folder() / "stories260k-hf";
  fs::copy(model, folder.path() / "model");
  EXPECT_EQ(token_key(read_data_file(kQuestions), encoder(folder.path() / "model"), {0}), key);
  std::ofstream(folder.path() / "model/tokenizer.json", std::ios::app) << " ";
  EXPECT_NE(token_key(read_data_file(kQuestions), encoder(folder.path() / "model"), {0}), key);
}

}  // namespace
}  // namespace llm::data
