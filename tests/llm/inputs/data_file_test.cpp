#include "llm/inputs/data_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files/sha256.h"
#include "llm/inputs/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::inputs {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;

std::string record(int number) {
  return R"({"prompt": "p)" + std::to_string(number) +
         R"(", "completion": "c"})"
         "\n";
}

std::string records(int first, int end) {
  std::string lines;
  for (int number = first; number < end; ++number) {
    lines += record(number);
  }
  return lines;
}

std::string squad(const std::string& id) {
  return R"({"data": [{"paragraphs": [{"context": "Lily ran.", "qas": [{"id": ")" + id +
         R"(", "question": "Who?", "answers": [{"text": "Lily", "answer_start": 0}]}]}]}]})";
}

std::vector<std::string> prompts_of(const text::QuestionFile& file) {
  std::vector<std::string> prompts;
  for (const text::Question& question : file.questions) {
    prompts.push_back(question.question);
  }
  return prompts;
}

// Eleven records in three files, and what is none of them.
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
  TempFolder folder;
};

TEST(FilesOf, AStarStandsForAnyCharactersOfAName) {
  const Split split;
  const std::vector<std::string> train = {split.path("train-00000-of-00003.jsonl"),
                                          split.path("train-00001-of-00003.jsonl"),
                                          split.path("train-00002-of-00003.jsonl")};
  EXPECT_EQ(files_of(split.path("train-*.jsonl")), train);
  EXPECT_EQ(files_of(split.path("t*r*a*n-0*of*l")), train);
  EXPECT_EQ(files_of(split.path("*")).size(), 4U);
  EXPECT_THAT(files_of(split.path("test*")), ElementsAre(split.path("test-00000-of-00001.jsonl")));
  EXPECT_THAT(files_of("no/such.jsonl"), ElementsAre("no/such.jsonl"));  // told when it is read
  expect_error([&] { (void)files_of(split.path("train-*.json")); }, ExitCode::InputMissing,
               {"train-*.json: no file in " + split.folder.path().string() + " has such a name"});
  split.folder.write("a*.jsonl", record(1));
  split.folder.write("ab.jsonl", record(2));
  EXPECT_THAT(files_of(split.path("a*.jsonl")), ElementsAre(split.path("a*.jsonl")));
}

TEST(PatternOf, MeansTheseFilesAlone) {
  const Split split;
  std::vector<std::string> train = files_of(split.path("train-*.jsonl"));
  EXPECT_EQ(pattern_of(train), split.path("train-0000*-of-00003.jsonl"));
  EXPECT_EQ(pattern_of({train[2], train[0], train[1]}), split.path("train-0000*-of-00003.jsonl"));
  train.pop_back();
  EXPECT_EQ(pattern_of(train), std::nullopt);  // it would mean the third one too
  EXPECT_EQ(pattern_of({split.path("train-00000-of-00003.jsonl"), "/elsewhere/a.jsonl"}),
            std::nullopt);
  split.folder.write("aa.txt", "");
  split.folder.write("aaa.txt", "");
  EXPECT_EQ(pattern_of({split.path("aa.txt"), split.path("aaa.txt")}), split.path("*aa.txt"));
}

TEST(DataFile, SeveralFilesAreOneDataSet) {
  const Split split;
  const DataFile file = read_data_file(split.path("train-*.jsonl"));
  EXPECT_EQ(file.name, split.path("train-*.jsonl"));
  ASSERT_EQ(file.files.size(), 3U);
  using sherd::files::sha256_of;
  EXPECT_EQ(file.sha256, sha256_of(sha256_of(records(0, 4)) + sha256_of(records(4, 9)) +
                                   sha256_of(records(9, 11))));
  const text::QuestionFile all = questions_of(file, {});
  EXPECT_THAT(prompts_of(all),
              ElementsAre("p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10"));
  EXPECT_EQ(all.questions[4].id, "line 1 of train-00001-of-00003.jsonl");
  EXPECT_EQ(all.files[all.questions[4].file], split.path("train-00001-of-00003.jsonl"));
}

TEST(DataFile, ALimitIsOfAllFilesTogether) {
  const Split split;
  const DataFile file = read_data_file(split.path("train-*.jsonl"));
  const auto first = prompts_of(questions_of(file, {6}));
  EXPECT_THAT(first, ElementsAre("p0", "p1", "p2", "p3", "p4", "p5"));
  const auto one = split.folder.write("one.jsonl", records(0, 11));
  for (const std::uint64_t seed : {1, 2}) {
    const Limit drawn = {6, true, seed};
    EXPECT_EQ(prompts_of(questions_of(file, drawn)),
              prompts_of(questions_of(read_data_file(one), drawn)));
  }
}

TEST(DataFile, QuestionsKeepTheirContextsAndIds) {
  const TempFolder folder;
  folder.write("a.json", squad("q1"));
  folder.write("b.json", squad("q2"));
  const text::QuestionFile all = questions_of(read_data_file(folder.path() / "*.json"), {});
  ASSERT_EQ(all.questions.size(), 2U);
  EXPECT_EQ(all.contexts.size(), 2U);
  EXPECT_EQ(all.questions[1].context, 1U);
  EXPECT_EQ(all.questions[1].id, "q2");
}

TEST(DataFile, SomeOfItsFilesMayBeEmpty) {
  const TempFolder folder;
  folder.write("a-0.jsonl", "\n");
  folder.write("a-1.jsonl", records(0, 2));
  folder.write("a-2.jsonl", "{}\n");  // a bad record alone
  folder.write("b-0.json", "");       // of which the format is not known
  folder.write("b-1.json", "[" + record(3) + "]");
  folder.write("b-2.json", "[]");
  folder.write("c-0.json", R"({"data": []})");
  folder.write("c-1.json", squad("q1"));
  folder.write("c-2.json", "");
  const auto prompts = [&](const char* pattern) {
    return prompts_of(
        questions_of(read_data_file(folder.path() / pattern, {.bad = {.skip = true}}), {}));
  };
  EXPECT_THAT(prompts("a-*.jsonl"), ElementsAre("p0", "p1"));
  EXPECT_THAT(prompts("b-*.json"), ElementsAre("p3"));
  EXPECT_THAT(prompts("c-*.json"), ElementsAre("Who?"));
}

TEST(DataFile, ADataSetMayNotBeEmpty) {
  const TempFolder folder;
  folder.write("a-0.jsonl", "");
  folder.write("a-1.jsonl", "\n");
  folder.write("b.jsonl", "{}\n");
  folder.write("c.json", R"({"data": []})");
  folder.write("d.json", "[]");
  const auto refused = [&](const char* name, const std::string& message) {
    const std::string path = folder.path() / name;
    expect_error([&] { (void)questions_of(read_data_file(path, {.bad = {.skip = true}}), {}); },
                 ExitCode::BadData, {path + ": " + message});
  };
  refused("a-*.jsonl", "contains no records");
  refused("a-0.jsonl", "contains no records");
  refused("b.jsonl", "contains no good record; the first: line 1, byte 0: has no \"prompt\"");
  refused("c.json", "contains no questions");
  refused("d.json", "contains no records");
}

TEST(DataFile, InUtf16IsToldOnce) {
  const TempFolder folder;
  for (const char* name : {"a.jsonl", "a.json", "a"}) {
    const auto path = folder.write(name, std::string("{\0}\0", 4));
    expect_error([&] { (void)read_data_file(path); }, ExitCode::BadData,
                 {std::string(name) + ": is UTF-16LE text, expected UTF-8: save it as UTF-8"});
  }
}

TEST(DataFile, AnIdOfTwoFilesIsBad) {
  const TempFolder folder;
  folder.write("a.json", squad("q1"));
  const auto second = folder.write("b.json", squad("q1"));
  const auto path = folder.path() / "*.json";
  expect_error(
      [&] { (void)questions_of(read_data_file(path), {}); }, ExitCode::BadData,
      {"*.json: " + second.string() + ": question q1: a question of ", "a.json has the same id"});
  const text::QuestionFile all = questions_of(read_data_file(path, {.bad = {.skip = true}}), {});
  EXPECT_EQ(all.questions.size(), 1U);
  ASSERT_EQ(all.skipped.size(), 1U);
  EXPECT_EQ(all.skipped[0].source, second.string());
}

TEST(DataFile, BadSamplesOfAllFilesCountTogether) {
  const TempFolder folder;
  const auto first = folder.write("a.jsonl", record(0) + "bad\n");
  const auto second = folder.write("b.jsonl", "bad\n" + record(1));
  const auto path = folder.path() / "*.jsonl";
  const text::QuestionFile all = questions_of(read_data_file(path, {.bad = {true, 2}}), {});
  EXPECT_THAT(prompts_of(all), ElementsAre("p0", "p1"));
  ASSERT_EQ(all.skipped.size(), 2U);
  EXPECT_EQ(all.skipped[0].source, first.string());
  EXPECT_EQ(all.skipped[0].place, "2");
  EXPECT_EQ(all.skipped[0].content, "bad");
  EXPECT_EQ(all.skipped[1].source, second.string());
  EXPECT_EQ(all.skipped[1].place, "1");
  expect_error(
      [&] {
        (void)questions_of(read_data_file(path, {.bad = {true, 1}}), {});
      },
      ExitCode::BadData,
      {"2 bad samples are more than data.max_bad_samples = 1", first.string() + ": line 2"});
  expect_error([&] { (void)questions_of(read_data_file(path), {}); }, ExitCode::BadData,
               {first.string() + ": line 2, byte "});
}

TEST(DataFile, FilesOfOneSetHaveOneFormat) {
  const TempFolder folder;
  folder.write("a.json", squad("q1"));
  folder.write("b.json", R"([{"prompt": "p", "completion": "c"}])");
  expect_error([&] { (void)read_data_file(folder.path() / "*.json"); }, ExitCode::BadData,
               {"b.json is of another format than ", "a.json: give each format its own data set"});
}

// Of the second file; places are those there.
TEST(DataFile, WhatDoesNotFitIsNamedWithItsFile) {
  const TempFolder folder;
  folder.write("a.jsonl", record(0));
  const std::string llama = R"({"prompt": "🦙", "completion": "b"})";
  const auto second = folder.write("b.jsonl", record(1) + llama + "\n");
  const text::PromptEncoder tight(
      text::Tokenizer::from_folder(sherd::test::data_folder() / "stories260k-hf"), {11, 8});
  const Dataset dataset =
      load_dataset(read_data_file(folder.path() / "*.jsonl", {.bad = {.skip = true}}), tight);
  EXPECT_EQ(dataset.samples.size(), 2U);
  ASSERT_EQ(dataset.file.skipped.size(), 1U);
  const text::BadSample& bad = dataset.file.skipped[0];
  EXPECT_EQ(bad.source, second.string());
  EXPECT_EQ(bad.unit, "line");
  EXPECT_EQ(bad.place, "2");
  EXPECT_EQ(bad.byte, static_cast<std::int64_t>(record(1).size()));
  EXPECT_EQ(bad.content, llama);
}

}  // namespace
}  // namespace llm::inputs
