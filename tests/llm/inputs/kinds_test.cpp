// Kinds of data as a run reads them: what is recognised and said, which side of a share a sample is
// on, and what is refused with advice.

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/inputs/record_source.h"
#include "llm/text/conversation.h"
#include "tests/llm/inputs/stores.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::inputs {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum config::DataFormat;

const std::string kShippedFiles = SHERD_TEST_SOURCE_DIR "/recipes/data/";

// The good records of a file, each of which has a sample.
std::size_t records_in(const std::string& path, const FileReading& reading = {}) {
  const Prepared found = prepare(open_source(path, reading, {}), chat_stories(), {});
  return static_cast<std::size_t>(found.store->record(found.store->size() - 1)) + 1;
}

// What the report says of fields that are not read.
std::string unread(const std::filesystem::path& path, const FileReading& reading = {}) {
  return prepare(open_source(path, reading, {}), chat_stories(), {}).report.unread.sentence();
}

const std::string kRecord = R"({"text": "Once."})";

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
    const DataFile file = find_data_file(kShippedFiles + one.file);
    EXPECT_EQ(file.reading.format, one.format) << one.file;
    EXPECT_THAT(file.note, HasSubstr(one.note));
    EXPECT_EQ(records_in(kShippedFiles + one.file), one.records) << one.file;
    const FileReading given = {.format = one.format};
    EXPECT_EQ(find_data_file(kShippedFiles + one.file, given).note, "");
    EXPECT_EQ(records_in(kShippedFiles + one.file, given), one.records) << one.file;
  }
  const FileReading columns = {.columns = {.prompt = "question", .completion = "answer"}};
  const DataFile table = find_data_file(kShippedFiles + "stories.csv", columns);
  EXPECT_EQ(table.reading.format, Csv);
  EXPECT_EQ(table.note, "prompt_completion (`question`, `answer`)");
  EXPECT_EQ(records_in(kShippedFiles + "stories.csv", columns), 160U);
  EXPECT_EQ(find_data_file(kShippedFiles + "squad-32.json").note,
            "squad (questions about contexts)");
}

TEST(DataKinds, PromptsAreSaidToBeTextsOrMessages) {
  const TempFolder folder;
  const std::string pair = R"({"prompt": [{"role": "user", "content": "a"}], )"
                           R"("completion": [{"role": "assistant", "content": "b"}]})";
  for (const std::string name : {"a.jsonl", "a.json"}) {
    const bool is_array = name.ends_with(".json");
    const auto path = folder.write(name, is_array ? "[" + pair + "]" : pair);
    const DataFile file = find_data_file(path);
    EXPECT_EQ(file.note, "prompt_completion (`prompt`, `completion`, lists of messages)");
    EXPECT_EQ(file.reading.format, is_array ? Json : Jsonl);
    const auto records = records_at(open_source(path, {}, {}), {0});
    EXPECT_TRUE(records.at(0).questions[0].conversation);
    EXPECT_EQ(find_data_file(path, {.format = PromptCompletion}).note, "");
  }
  const auto texts = folder.write("b.jsonl", R"({"prompt": "a", "completion": "b"})");
  EXPECT_EQ(find_data_file(texts).note, "prompt_completion (`prompt`, `completion`)");
  const auto dialog = folder.write(
      "c.jsonl",
      R"({"dialog": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(find_data_file(dialog, {.columns = {.messages = "dialog"}}).note, "chat (`dialog`)");
}

TEST(DataKinds, AColumnThatWouldBeIgnoredIsNamed) {
  const TempFolder folder;
  const std::string row = R"({"instruction": "Translate.", "input": "Hallo", "output": "Hello."})";
  const auto path = folder.write("a.jsonl", row);
  const text::Columns columns = {.prompt = "instruction", .completion = "output"};
  EXPECT_EQ(unread(path, {.columns = columns}),
            "these fields are not read: \"input\" (1 record, line 1)");
  const auto records = records_at(open_source(path, {}, {}), {0});
  EXPECT_EQ(records.at(0).questions[0].conversation->messages[0]["content"], "Translate.\n\nHallo");
  const auto record = folder.write("b.json", R"({"id": 1, "text": "Once."})");
  EXPECT_EQ(find_data_file(record).note, "text (`text`, learned as a whole)");
  EXPECT_EQ(unread(record), "these fields are not read: \"id\" (1 record, line 1)");
  folder.write("c-1.jsonl", kRecord + "\n");
  folder.write("c-2.jsonl", "\n" + kRecord.substr(0, kRecord.size() - 1) + R"(, "id": 2})" + "\n");
  EXPECT_EQ(unread(folder.path() / "c-*.jsonl"),
            "these fields are not read: \"id\" (1 record, line 2 of c-2.jsonl)");
}

TEST(DataKinds, AGivenKindReadsNoOther) {
  const TempFolder folder;
  const auto path = folder.write("a.jsonl", R"({"conversations": [], "id": 3})");
  expect_error([&] { dataset(path, chat_stories(), {.format = Chat}); }, ExitCode::BadData,
               {R"(has no "messages"; its columns are "conversations", "id")"});
  const auto named = folder.write(
      "b.jsonl",
      R"({"dialog": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(records_in(named, {.format = Chat, .columns = {.messages = "dialog"}}), 1U);
}

TEST(DataKinds, FoldersOfArrowAreRefusedWithTheWayToParquet) {
  const TempFolder folder;
  folder.write("dataset_info.json", "{}");
  expect_error([&] { find_data_file(folder.path()); }, ExitCode::BadData,
               {"save_to_disk", "load_from_disk(\"" + folder.path().string() + "\").to_parquet("});
  folder.write("dataset_dict.json", "{}");
  expect_error([&] { find_data_file(folder.path()); }, ExitCode::BadData,
               {"[\"train\"].to_parquet("});
  expect_error([&] { find_data_file(folder.path() / "data-00000-of-00001.arrow"); },
               ExitCode::BadData, {"save_to_disk"});
}

std::set<std::string> prompts_on(Side side, double share, const std::string& path) {
  std::set<std::string> prompts;
  FileReading reading{.columns = {.prompt = "question", .completion = "answer"}};
  reading.side = side;
  reading.held_out = share;
  const Dataset found = dataset(path, stories(), reading);
  for (std::size_t i = 0; i < found.samples.size(); ++i) {
    prompts.insert(found.record(i).question);
  }
  return prompts;
}

TEST(HeldOut, IsAShareOfTheSamplesAndNoneIsOnBothSides) {
  const std::string path = kShippedFiles + "stories.csv";
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
      {"data.held_out leaves no sample to evaluate (the data has 1 sample): raise it, give more "
       "samples, or remove it (0)"});
}

}  // namespace
}  // namespace llm::inputs
