#include "llm/inputs/data_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "files/sha256.h"
#include "tests/llm/inputs/data_files.h"
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
}

TEST(DataFile, QuestionsKeepTheirContextsAndIds) {
  const TempFolder folder;
  folder.write("a.json", squad("q1"));
  folder.write("b.json", squad("q2"));
  const text::QuestionFile all = parse_questions(read_data_file(folder.path() / "*.json"));
  ASSERT_EQ(all.questions.size(), 2U);
  EXPECT_EQ(all.contexts.size(), 2U);
  EXPECT_EQ(all.questions[1].context, 1U);
  EXPECT_EQ(all.questions[1].id, "q2");
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
      [&] { (void)parse_questions(read_data_file(path)); }, ExitCode::BadData,
      {"*.json: " + second.string() + ": question q1: a question of ", "a.json has the same id"});
  const text::QuestionFile all = parse_questions(read_data_file(path, {.bad = {.skip = true}}));
  EXPECT_EQ(all.questions.size(), 1U);
  ASSERT_EQ(all.skipped.size(), 1U);
  EXPECT_EQ(all.skipped[0].source, second.string());
}

TEST(DataFile, FilesOfOneSetHaveOneFormat) {
  const TempFolder folder;
  folder.write("a.json", squad("q1"));
  folder.write("b.json", R"([{"prompt": "p", "completion": "c"}])");
  expect_error([&] { (void)read_data_file(folder.path() / "*.json"); }, ExitCode::BadData,
               {"b.json is of another format than ", "a.json: give each format its own data set"});
}

TEST(DataFile, TheFormatFollowsFromNameAndContent) {
  using enum config::DataFormat;
  EXPECT_EQ(format_of({"a.jsonl", "[1]"}), Jsonl);
  EXPECT_EQ(format_of({"a.ndjson", ""}), Jsonl);
  EXPECT_EQ(format_of({"a.json", "\xef\xbb\xbf\n [1]"}), Json);
  EXPECT_EQ(format_of({"a.json", "{}"}), Squad);
  EXPECT_EQ(format_of({"a", ""}), Squad);
  const sherd::test::TempFolder folder;
  const auto file = folder.write("a.txt", R"([{"prompt": "a", "completion": "b"}])");
  EXPECT_EQ(read_data_file(file).reading.format, Json);
  EXPECT_EQ(read_data_file(file, {.format = Jsonl}).reading.format, Jsonl);
}

TEST(DataFile, APipeOrADeviceIsNotWaitedFor) {
  const sherd::test::TempFolder folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error([&] { (void)read_data_file(pipe); }, ExitCode::BadData, {"found a pipe"});
  expect_error([&] { (void)read_data_file("/dev/zero"); }, ExitCode::BadData, {"found a device"});
}

TEST(DataFile, MissingFilesAreInputMissing) {
  const sherd::test::TempFolder folder;
  expect_error([&] { (void)read_data_file(folder.path() / "none.json"); }, ExitCode::InputMissing,
               {"none.json: cannot be opened: No such file"});
  expect_error([&] { (void)read_data_file(folder.path()); }, ExitCode::BadData,
               {"expected a regular file, found a folder"});
}

}  // namespace
}  // namespace llm::inputs
