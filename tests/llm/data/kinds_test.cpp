// Kinds of data as a run reads them: what is recognised and said, which side of a share a sample is
// on, and what is refused with advice.

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/data/data_file.h"
#include "llm/text/conversation.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::data {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum config::DataFormat;

const std::string kShipped = SHERD_TEST_SOURCE_DIR "/recipes/data/";

TEST(DataKinds, AreRecognisedAndSaid) {
  struct Shipped {
    const char* file;
    config::DataFormat format;
    const char* note;
    std::size_t records;
  };
  for (const Shipped& one : {Shipped{"stories-chat.jsonl", Chat, "chat (`messages`)", 120},
                             {"stories-chat.parquet", Sharegpt, "sharegpt", 120},
                             {"stories-alpaca.json", Alpaca, "alpaca", 160},
                             {"stories-text.jsonl", Text, "text", 120}}) {
    const DataFile file = read_data_file(kShipped + one.file);
    EXPECT_EQ(file.reading.format, one.format) << one.file;
    EXPECT_THAT(file.note, HasSubstr(one.note));
    EXPECT_EQ(parse_data_file(file).questions.size(), one.records) << one.file;
    const DataFile given = read_data_file(kShipped + one.file, {.format = one.format});
    EXPECT_EQ(given.note, "");
    EXPECT_EQ(parse_data_file(given).questions.size(), one.records) << one.file;
  }
  const DataFile table = read_data_file(
      kShipped + "stories.csv", {.columns = {.prompt = "question", .completion = "answer"}});
  EXPECT_EQ(table.reading.format, Csv);
  EXPECT_EQ(table.note, "");
  EXPECT_EQ(parse_data_file(table).questions.size(), 160U);
}

TEST(DataKinds, AColumnThatWouldBeIgnoredIsNamed) {
  const TempFolder folder;
  const std::string row = R"({"instruction": "Translate.", "input": "Hallo", "output": "Hello."})";
  const auto path = folder.write("a.jsonl", row);
  const text::Columns columns = {.prompt = "instruction", .completion = "output"};
  EXPECT_EQ(read_data_file(path, {.columns = columns}).note, "the column \"input\" is not read");
  const text::QuestionFile whole = parse_data_file(read_data_file(path));
  EXPECT_EQ(whole.questions[0].conversation->messages[0]["content"], "Translate.\n\nHallo");
  const auto record = folder.write("b.json", R"({"id": 1, "text": "Once."})");
  EXPECT_EQ(read_data_file(record).note,
            "text (`text`, learned as a whole); the column \"id\" is not read");
}

TEST(DataKinds, AGivenKindReadsNoOther) {
  const TempFolder folder;
  const auto path = folder.write("a.jsonl", R"({"conversations": [], "id": 3})");
  expect_error([&] { parse_data_file(read_data_file(path, {.format = Chat})); }, ExitCode::BadData,
               {R"(has no "messages"; its columns are "conversations", "id")"});
  const auto named = folder.write(
      "b.jsonl",
      R"({"dialog": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  const FileReading reading{.format = Chat, .columns = {.messages = "dialog"}};
  EXPECT_EQ(parse_data_file(read_data_file(named, reading)).questions.size(), 1U);
}

TEST(DataKinds, FoldersOfArrowAreRefusedWithTheWayToParquet) {
  const TempFolder folder;
  folder.write("dataset_info.json", "{}");
  expect_error([&] { read_data_file(folder.path()); }, ExitCode::BadData,
               {"save_to_disk", "load_from_disk(\"" + folder.path().string() + "\").to_parquet("});
  folder.write("dataset_dict.json", "{}");
  expect_error([&] { read_data_file(folder.path()); }, ExitCode::BadData,
               {"[\"train\"].to_parquet("});
  expect_error([&] { read_data_file(folder.path() / "data-00000-of-00001.arrow"); },
               ExitCode::BadData, {"save_to_disk"});
}

std::set<std::string> prompts_on(Side side, double share, const std::string& path) {
  std::set<std::string> prompts;
  FileReading reading{.columns = {.prompt = "question", .completion = "answer"}};
  reading.side = side;
  reading.held_out = share;
  for (const text::Question& question : parse_data_file(read_data_file(path, reading)).questions) {
    prompts.insert(question.question);
  }
  return prompts;
}

TEST(HeldOut, IsAShareOfTheSamplesAndNoneIsOnBothSides) {
  const std::string path = kShipped + "stories.csv";
  const auto all = prompts_on(Side::All, 0.1, path);
  const auto training = prompts_on(Side::Training, 0.1, path);
  const auto held_out = prompts_on(Side::HeldOut, 0.1, path);
  EXPECT_EQ(training.size() + held_out.size(), all.size());
  EXPECT_GT(held_out.size(), 6U);
  EXPECT_LT(held_out.size(), 30U);
  for (const std::string& prompt : held_out) {
    EXPECT_FALSE(training.contains(prompt));
    EXPECT_TRUE(prompts_on(Side::HeldOut, 0.2, path).contains(prompt));  // a larger share holds it
  }
}

TEST(HeldOut, EqualSamplesAreOnOneSideInAnyOrder) {
  const TempFolder folder;
  std::string forth;
  std::string back;
  for (int i = 0; i < 100; ++i) {
    const std::string line =
        R"({"question": "q)" + std::to_string(i % 50) + R"(", "answer": "a"})" + "\n";
    forth += line;
    back = line + back;
  }
  const auto first = prompts_on(Side::HeldOut, 0.3, folder.write("a.jsonl", forth).string());
  EXPECT_EQ(first, prompts_on(Side::HeldOut, 0.3, folder.write("b.jsonl", back).string()));
  for (const std::string& prompt : prompts_on(Side::Training, 0.3, folder.path() / "a.jsonl")) {
    EXPECT_FALSE(first.contains(prompt));
  }
}

TEST(HeldOut, AShareThatLeavesNothingIsRefused) {
  const TempFolder folder;
  const auto path = folder.write("a.jsonl", R"({"question": "q", "answer": "a"})").string();
  expect_error(
      [&] { prompts_on(Side::HeldOut, 1e-9, path); }, ExitCode::BadData,
      {"data.held_out leaves none of its 1 samples to evaluate: raise it, give more samples, or "
       "remove it (0)"});
}

}  // namespace
}  // namespace llm::data
