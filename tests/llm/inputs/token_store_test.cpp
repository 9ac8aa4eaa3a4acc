// Stores of tokens: what they give back, what they notice, and what they depend on.

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
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

TEST(TokenCache, GivesBackWhatWasWritten) {
  const TempFolder folder;
  const fs::path cache = folder.path() / "not/there/yet";
  const Limit limit{7};
  const Source source = open_source(kQuestions, {}, {});
  const Prepared made =
      prepare(source, stories(200, 8), {.folder = cache, .limit = limit, .keeps_records = true});
  const Prepared found =
      prepare(source, stories(200, 8), {.folder = cache, .limit = limit, .keeps_records = true});
  EXPECT_TRUE(made.was_made);
  EXPECT_FALSE(found.was_made);
  EXPECT_EQ(made.not_kept, "");
  EXPECT_EQ(found.store->digest(), made.store->digest());
  text::QuestionFile questions = whole(kQuestions, {});
  questions.questions.resize(7);
  expect_samples(*found.store, encoded(questions, stories(200, 8)));
  EXPECT_EQ(found.report.sentence(), made.report.sentence());
  const Dataset records = dataset_of(found, source);
  for (std::size_t i = 0; i < 7; ++i) {
    const text::Question record = records.record(i);
    EXPECT_EQ(record.id, questions.questions[i].id);
    EXPECT_EQ(record.question, questions.questions[i].question);
    EXPECT_EQ(record.answers.size(), questions.questions[i].answers.size());
    EXPECT_EQ(record.answers[0].text, questions.questions[i].answers[0].text);
    EXPECT_FALSE(record.is_record());
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsShadowMemory = true;
#else
constexpr bool kCountsShadowMemory = false;
#endif

// Records are read one by one: evaluation holds none.
TEST(TokenCache, RecordsTakeNoMemory) {
  const TempFolder folder;
  constexpr std::int64_t kRecords = 10'000;
  std::string lines;
  for (std::int64_t i = 0; i < kRecords; ++i) {
    lines += R"({"prompt": "Who?", "completion": ")" +
             std::string(1000, static_cast<char>('a' + i % 26)) + "\"}\n";
  }
  const Source source = open_source(folder.write("a.jsonl", lines), {}, {});
  const Prepared prepared = prepare(source, stories(64), {.keeps_records = true});
  const auto anonymous_kib = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("RssAnon:")) {
        return std::stoll(line.substr(8));
      }
    }
    return 0LL;
  };
  ::malloc_trim(0);  // what preparing has freed
  const auto before = anonymous_kib();
  const Dataset dataset = dataset_of(prepared, source);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < dataset.samples.size(); ++i) {
    bytes += dataset.record(i).answers.front().text.size();
  }
  EXPECT_EQ(bytes, 1000 * kRecords);
  const auto held = anonymous_kib() - before;
  EXPECT_TRUE(kCountsShadowMemory || held < 3 << 10) << held;
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
  const text::BadSample& bad = found.skipped[0];
  EXPECT_EQ(bad.source, lines.string());
  EXPECT_EQ(bad.content, "bad");
  EXPECT_THAT(bad.text(), testing::StartsWith("line 2, byte 35: "));
  EXPECT_THAT(found.report.sentence(), testing::EndsWith("; 1 bad sample skipped"));
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
  ASSERT_EQ(found.store->size(), 1U);
  EXPECT_EQ(found.store->record(0), 1);
  text::QuestionFile fits = whole(lines, {});
  fits.questions.erase(fits.questions.begin());
  expect_samples(*found.store, encoded(fits, tight));
  ASSERT_EQ(found.skipped.size(), 1U);
  EXPECT_THAT(found.skipped[0].text(),
              testing::StartsWith("line 1, byte 0: nothing of the prompt"));
  EXPECT_THAT(found.skipped[0].content, testing::HasSubstr("🦙"));
}

// Processes that know the file by other names have the same store, and tell their own.
TEST(TokenCache, IsTheSameForFilesOfOtherNames) {
  const TempFolder folder;
  const FileReading skipping = {.bad = {.skip = true}};
  const auto source_in = [&](const std::string& name) {
    fs::create_directory(folder.path() / name);
    folder.write(name + "/" + name + "-1.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    folder.write(name + "/" + name + "-2.jsonl",
                 "bad\n{\"prompt\": \"c\", \"completion\": \"d\"}\n");
    return open_source(folder.path() / name / "*.jsonl", skipping, {});
  };
  const Source here = source_in("here");
  const Source there = source_in("long-name-of-another-mount");
  const PrepareOptions mine = {.folder = folder.path() / "mine", .keeps_records = true};
  const PrepareOptions other = {.folder = folder.path() / "other", .keeps_records = true};
  EXPECT_EQ(store_key(here, stories(), mine), store_key(there, stories(), other));
  const Prepared made = prepare(here, stories(), mine);
  EXPECT_EQ(prepare(there, stories(), other).store->digest(), made.store->digest());
  const Prepared found = prepare(there, stories(), mine);
  EXPECT_FALSE(found.was_made);
  ASSERT_EQ(found.skipped.size(), 1U);
  EXPECT_EQ(found.skipped[0].source, there.file.files[1].name);
  EXPECT_EQ(dataset_of(found, there).record(1).id, "line 2 of long-name-of-another-mount-2.jsonl");
  EXPECT_EQ(dataset_of(made, here).record(1).id, "line 2 of here-2.jsonl");
}

// A store without its tail is none; a block is checked when it is read.
TEST(TokenCache, HasNothingWhereTheFileIsDamaged) {
  const TempFolder folder;
  const fs::path cache = folder.path() / "cache";
  const Source source = open_source(kQuestions, {}, {});
  const PrepareOptions options = {
      .folder = cache, .limit = {3}, .keeps_records = true, .block_bytes = 2000};
  static_cast<void>(prepare(source, stories(), options));
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
      for (std::size_t i = 0; store != nullptr && i < store->size(); ++i) {
        static_cast<void>(i % 2 == 0 ? store->at(i).ids.size() : store->text(i).size());
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
  EXPECT_TRUE(prepare(source, stories(), options).was_made);
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
  expect_samples(*made.store, encoded(whole(kQuestions, {}), stories()));
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
