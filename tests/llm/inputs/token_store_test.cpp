// Stores of tokens: what they give back, what they notice, and what they depend on.

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/inputs/prepare.h"
#include "tests/llm/inputs/stores.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace llm::inputs {
namespace {

namespace fs = std::filesystem;
using sherd::test::expect_error;
using sherd::test::TempFolder;

TokenizedFile tokenized(const fs::path& path, const text::PromptEncoder& encoder,
                        const Limit& limit = {}) {
  const DataFile file = read_data_file(path, {.bad = {.skip = true}});
  return tokenize(questions_of(file, limit), file, encoder);
}

void expect_same(const Samples& found, const Samples& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_THAT(found[i].ids, testing::ElementsAreArray(expected[i].ids));
    EXPECT_TRUE(std::ranges::equal(found[i].supervised, expected[i].supervised));
    EXPECT_EQ(found[i].cut, expected[i].cut);
    EXPECT_EQ(found.length(i), std::ssize(expected[i].ids));
    EXPECT_EQ(found.supervised(i), expected[i].supervised_tokens());
  }
}

TEST(TokenCache, GivesBackWhatWasWritten) {
  const TempFolder folder;
  const fs::path cache = folder.path() / "not/there/yet";
  const Limit limit{7};
  const TokenizedFile expected = tokenized(kQuestions, stories(200, 8), limit);
  const Source source = open_source(kQuestions, {}, {});
  const Prepared made =
      prepare(source, stories(200, 8), {.folder = cache, .limit = limit, .keeps_records = true});
  const Prepared found =
      prepare(source, stories(200, 8), {.folder = cache, .limit = limit, .keeps_records = true});
  EXPECT_TRUE(made.was_made);
  EXPECT_FALSE(found.was_made);
  EXPECT_EQ(made.not_kept, "");
  EXPECT_EQ(found.store->digest(), made.store->digest());
  expect_same(Samples(found.store), expected.samples);
  EXPECT_EQ(found.report.sentence(), expected.report.sentence());
  const text::QuestionFile records = records_in(*found.store);
  ASSERT_EQ(records.questions.size(), 7U);
  const DataFile file = read_data_file(kQuestions);
  const text::QuestionFile questions = questions_of(file, limit);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(records.questions[i].id, questions.questions[i].id);
    EXPECT_EQ(records.questions[i].question, questions.questions[i].question);
    EXPECT_EQ(records.questions[i].answers.size(), questions.questions[i].answers.size());
    EXPECT_EQ(records.questions[i].answers[0].text, questions.questions[i].answers[0].text);
    EXPECT_FALSE(records.questions[i].is_record());
  }
}

TEST(TokenCache, WhoseFileBecomesShorterIsNamed) {
  const TempFolder folder;
  const Prepared found =
      prepare(open_source(kQuestions, {}, {}), stories(), {.folder = folder.path()});
  const fs::path file = store_in(folder.path());
  fs::resize_file(file, 0);
  expect_error([&] { static_cast<void>(found.store->at(6)); }, sherd::ExitCode::StorageIo,
               {file.string(), "became shorter"});
}

TEST(TokenCache, KnowsRecordsAndHowManyWereSkipped) {
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\nbad\n");
  const Source source = open_source(lines, {.bad = {.skip = true}}, {});
  const fs::path cache = folder.path() / "cache";
  static_cast<void>(prepare(source, stories(), {.folder = cache}));
  const Prepared found = prepare(source, stories(), {.folder = cache});
  EXPECT_FALSE(found.was_made);
  EXPECT_EQ(found.report.skipped, 1);
  ASSERT_EQ(found.skipped.size(), 1U);
  const auto expected = parse_data_file(read_data_file(lines, {.bad = {.skip = true}}));
  EXPECT_EQ(text::to_jsonl(found.skipped), text::to_jsonl(expected.skipped));
  EXPECT_EQ(found.report.sentence(), tokenized(lines, stories()).report.sentence());
  // The same store, where bad samples are refused now.
  expect_error(
      [&] { static_cast<void>(prepare(open_source(lines, {}, {}), stories(), {.folder = cache})); },
      sherd::ExitCode::BadData, {"a.jsonl: line 2", "data.on_bad_sample"});
}

TEST(TokenCache, KnowsWhichQuestionsDidNotFit) {
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", R"({"prompt": "🦙", "completion": "b"})"
                                             "\n"
                                             R"({"prompt": "a", "completion": "b"})");
  const auto tight = stories(11, 8);
  const Source source = open_source(lines, {.bad = {.skip = true}}, {});
  const Prepared found = prepare(source, tight, {.folder = folder.path() / "cache"});
  EXPECT_THAT(found.report.unfit, testing::ElementsAre(0));
  expect_same(Samples(found.store), tokenized(lines, tight).samples);
  const DataFile file = read_data_file(lines, {.bad = {.skip = true}});
  const text::QuestionFile questions = questions_of(file, {}, found.report, tight);
  EXPECT_EQ(questions.questions[0].id, "line 2");
  EXPECT_EQ(text::to_jsonl(found.skipped), text::to_jsonl(questions.skipped));
}

// A store without its tail is none; a block is checked when it is read.
TEST(TokenCache, HasNothingWhereTheFileIsDamaged) {
  const TempFolder folder;
  const fs::path cache = folder.path() / "cache";
  const Source source = open_source(kQuestions, {}, {});
  static_cast<void>(prepare(source, stories(), {.folder = cache, .limit = {2}}));
  const fs::path path = store_in(cache);
  const std::string good = sherd::test::bytes_of(path);
  std::size_t unnoticed = 0;
  for (std::size_t place = 0; place < good.size(); ++place) {
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ (1 << place % 8));
    std::ofstream(path, std::ios::binary) << bad;
    const auto store = TokenStore::open(path);
    try {
      unnoticed += store == nullptr ? 0 : 1;
      if (store != nullptr) {
        static_cast<void>(store->at(1));
      }
    } catch (const sherd::Error& error) {
      EXPECT_EQ(error.code(), sherd::ExitCode::StorageIo);
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("is damaged: its SHA-256 was"),
                                               testing::HasSubstr("start the same command again")));
      EXPECT_FALSE(fs::exists(path));
      --unnoticed;
    }
  }
  EXPECT_EQ(unnoticed, 0U);
  for (const std::size_t size : std::vector<std::size_t>{0, 10, 160, good.size() - 4}) {
    std::ofstream(path, std::ios::binary) << good.substr(0, size);
    EXPECT_EQ(TokenStore::open(path), nullptr) << size << " bytes";
  }
  EXPECT_TRUE(prepare(source, stories(), {.folder = cache, .limit = {2}}).was_made);
  EXPECT_EQ(sherd::test::bytes_of(path), good);
}

TEST(TokenCache, SaysWhyItCannotKeep) {
  const TempFolder folder;
  const auto file = folder.write("file", "");
  const Prepared made = prepare(open_source(kQuestions, {}, {}), stories(), {.folder = file});
  EXPECT_EQ(made.store->size(), 32U);
  EXPECT_THAT(made.not_kept,
              testing::MatchesRegex(file.string() + " cannot be written to: " + file.string() +
                                    "/[0-9a-f]+.lock: Not a directory"));
}

TEST(TokenCache, KeepsNothingWhereItHasNoFolder) {
  EXPECT_TRUE(store_folder("none").empty());
  const Prepared made = prepare(open_source(kQuestions, {}, {}), stories(), {});
  EXPECT_EQ(made.not_kept, "");
  EXPECT_TRUE(made.was_made);
  expect_same(Samples(made.store), tokenized(kQuestions, stories()).samples);
}

TEST(TokenKey, ChangesWithAllThatSamplesDependOn) {
  const TempFolder folder;
  const auto key_for = [](const fs::path& path, const text::PromptEncoder& encoder,
                          const Limit& limit = {}, bool keeps_records = false) {
    return store_key(open_source(path, {}, {}), encoder,
                     {.limit = limit, .keeps_records = keeps_records});
  };
  const auto same = folder.write("other.json", sherd::test::bytes_of(kQuestions));
  const std::string key = key_for(kQuestions, stories());
  EXPECT_EQ(key.size(), 64U);
  EXPECT_EQ(key_for(same, stories()), key);  // contents, not names
  std::ofstream(same, std::ios::app) << " ";
  EXPECT_NE(key_for(same, stories()), key);
  const TempFolder stopping;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    stopping.write(name,
                   sherd::test::bytes_of(sherd::test::data_folder() / "stories260k-hf" / name));
  }
  stopping.write("generation_config.json", R"({"eos_token_id": [2, 9]})");
  EXPECT_NE(key_for(kQuestions, encoder(stopping.path())), key);  // other tokens stop generation
  EXPECT_NE(key_for(kQuestions, stories(511)), key);
  EXPECT_NE(key_for(kQuestions, stories(512, 31)), key);
  EXPECT_NE(key_for(kQuestions, stories(), {}, true), key);
  EXPECT_NE(key_for(kQuestions, stories(), {5}), key);
  const Limit drawn = {5, true, 1};
  EXPECT_NE(key_for(kQuestions, stories(), drawn), key_for(kQuestions, stories(), {5}));
  EXPECT_NE(key_for(kQuestions, stories(), drawn), key_for(kQuestions, stories(), {5, true, 2}));

  const auto lines = folder.write("a.jsonl", R"({"p": "a", "q": "b"})");
  const auto key_of = [&](const FileReading& reading) {
    return store_key(open_source(lines, reading, {}), stories(), {});
  };
  const std::string of_lines = key_of({.columns = {"p", "q"}});
  EXPECT_NE(key_of({.columns = {"q", "p"}}), of_lines);
  EXPECT_NE(key_of({.columns = {"pq", ""}}), of_lines);
  EXPECT_NE(key_of({config::DataFormat::Json, {"p", "q"}}), of_lines);
  EXPECT_NE(key_of({config::DataFormat::Squad, {"p", "q"}}), of_lines);
  EXPECT_EQ(key_of({.columns = {"p", "q"}, .bad = {.skip = true}}), of_lines);

  const fs::path model = sherd::test::data_folder() / "stories260k-hf";
  fs::copy(model, folder.path() / "model");
  EXPECT_EQ(key_for(kQuestions, encoder(folder.path() / "model")), key);
  std::ofstream(folder.path() / "model/tokenizer.json", std::ios::app) << " ";
  EXPECT_NE(key_for(kQuestions, encoder(folder.path() / "model")), key);
}

}  // namespace
}  // namespace llm::inputs
