// Records of every kind as a store reads them, one after the other: the samples are those of files
// that are read as a whole.

#include "llm/inputs/record_source.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/text/conversation.h"
#include "tests/llm/inputs/stores.h"
#include "tests/support/expect_error.h"

namespace llm::inputs {
namespace {

namespace fs = std::filesystem;
using sherd::test::expect_error;
using sherd::test::TempFolder;

const fs::path kShipped = SHERD_TEST_SOURCE_DIR "/recipes/data";

PrepareOptions in_folder(const fs::path& folder) {
  PrepareOptions options;
  options.folder = folder;
  options.block_bytes = 16 << 10;
  return options;
}

void expect_samples_of_the_whole(const fs::path& path, const FileReading& reading) {
  const TempFolder folder;
  const text::PromptEncoder encoder = chat_stories();
  const Source source = open_source(path, reading, {});
  const DataFile file = read_data_file(path, reading);
  EXPECT_EQ(source.file.sha256, file.sha256);
  EXPECT_EQ(source.file.note, file.note);
  EXPECT_EQ(source.file.reading.format, file.reading.format);
  const Prepared prepared = prepare(source, encoder, in_folder(folder.path() / "cache"));
  const text::QuestionFile all = whole(path, reading);
  EXPECT_EQ(prepared.report.unread.all(), all.unread.all());
  expect_samples(*prepared.store, encoded(all, encoder));
}

// Records that are long make small batches: memory is bounded in bytes.
TEST(RecordSource, BoundsABatchInBytes) {
  const TempFolder folder;
  std::string records;
  for (int i = 0; i < 20; ++i) {
    records += (i == 0 ? "[" : ",\n") + std::string(R"({"prompt": "a", "completion": ")") +
               std::string(100'000, 'b') + R"("})";
  }
  const auto path = folder.write("long.json", records + "]");
  const auto source = records_of(open_source(path, {}, {}), {});
  std::size_t all = 0;
  while (const auto batch = source->next()) {
    const ParsedBatch parsed = batch->parse();
    EXPECT_LE(parsed.end - parsed.begin, 3U);
    all += parsed.end - parsed.begin;
  }
  EXPECT_EQ(all, 20U);
}

TEST(RecordSource, GivesTheRecordsOfEveryKind) {
  for (const char* name : {"stories-chat.jsonl", "stories-chat.parquet", "stories-alpaca.json",
                           "stories-text.jsonl", "squad-32.json"}) {
    expect_samples_of_the_whole(kShipped / name, {});
  }
  for (const char* name : {"stories.csv", "general-knowledge.jsonl"}) {
    expect_samples_of_the_whole(kShipped / name,
                                {.columns = {.prompt = "question", .completion = "answer"}});
  }
}

// The kind of a file does not tell: each record does.
TEST(RecordSource, TellsWhichRecordsAreConversations) {
  const TempFolder folder;
  const std::string pair = R"({"prompt": [{"role": "user", "content": "a"}], )"
                           R"("completion": [{"role": "assistant", "content": "b"}]})";
  const std::string texts = R"({"prompt": "a", "completion": "b"})";
  const auto conversations = [&](const char* name, const std::string& bytes,
                                 config::DataFormat format) {
    const Source source = open_source(folder.write(name, bytes), {.format = format}, {});
    return prepare(source, chat_stories(), {}).report.chat.conversations;
  };
  using enum config::DataFormat;
  for (const config::DataFormat format : {Auto, Jsonl, PromptCompletion}) {
    EXPECT_EQ(conversations("a.jsonl", pair + "\n" + texts + "\n" + pair, format), 2);
    EXPECT_EQ(conversations("b.jsonl", texts, format), 0);
  }
  EXPECT_EQ(conversations("c.json", "[" + texts + ", " + pair + "]", Json), 1);
  const Source shipped = open_source(kShipped / "stories-chat.parquet", {}, {});
  EXPECT_EQ(prepare(shipped, chat_stories(), {}).report.chat.conversations, 120);
}

TEST(RecordSource, KeepsToASideOfAShare) {
  for (const char* name : {"stories-chat.jsonl", "stories-alpaca.json", "squad-32.json"}) {
    for (const Side side : {Side::Training, Side::HeldOut}) {
      expect_samples_of_the_whole(kShipped / name, {.side = side, .held_out = 0.3});
    }
  }
  const TempFolder folder;
  const auto lines = folder.write("a.jsonl", R"({"prompt": "a", "completion": "b"})");
  for (const char* const name : {"a.jsonl", "b.json"}) {
    const auto path = name == std::string("a.jsonl")
                          ? lines
                          : folder.write(name, R"([{"prompt": "a", "completion": "b"}])");
    const Source source = open_source(path, {.side = Side::HeldOut, .held_out = 0.0001}, {});
    expect_error([&] { static_cast<void>(prepare(source, stories(), {})); },
                 sherd::ExitCode::BadData,
                 {"data.held_out leaves no sample to evaluate (the data has 1 sample): raise it"});
  }
}

TEST(RecordSource, JoinsFiles) {
  const TempFolder folder;
  folder.write("part-1.json", R"([{"prompt": "a", "completion": "b"}])");
  folder.write("part-2.json", R"([{"prompt": "c", "completion": "d"}, {"prompt": "no"}])");
  folder.write("part-3.json", R"([{"prompt": "e", "completion": "f"}])");
  const fs::path pattern = folder.path() / "part-*.json";
  const FileReading skipping = {.bad = {.skip = true, .most_skipped = 5}};
  expect_samples_of_the_whole(pattern, skipping);
  const Prepared prepared =
      prepare(open_source(pattern, skipping, {}), stories(), in_folder(folder.path() / "cache"));
  ASSERT_EQ(prepared.skipped.size(), 1U);
  EXPECT_THAT(prepared.skipped[0].source, testing::HasSubstr("part-2.json"));
  EXPECT_EQ(prepared.skipped[0].place, "2");
  expect_error([&] { static_cast<void>(prepare(open_source(pattern, {}, {}), stories(), {})); },
               sherd::ExitCode::BadData, {"part-2.json: record 2", "has no \"completion\""});
}

// A record that fits in no sample is told with its place, though its file's bytes are not held.
TEST(RecordSource, TellsWhereARecordStandsThatDoesNotFit) {
  const TempFolder folder;
  const auto path = folder.write("a.json",
                                 "[{\"prompt\": \"a\", \"completion\": \"b\"},\n"
                                 " {\"prompt\": \"c\", \"completion\": \"\"}]");
  expect_error([&] { static_cast<void>(prepare(open_source(path, {}, {}), stories(), {})); },
               sherd::ExitCode::BadData, {"record 2, line 2"});
}

TEST(RecordSource, GoesOnAfterABatchThatWasRead) {
  const Source source = open_source(kShipped / "stories-alpaca.json", {}, {});
  const auto from_begin = records_of(source, {});
  static_cast<void>(from_begin->next());
  const auto second = from_begin->next();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->cursor.number, 129);
  const auto again = records_of(source, second->cursor)->next();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->done, 160);
  const ParsedBatch expected = second->parse();
  const ParsedBatch found = again->parse();
  ASSERT_EQ(found.end, expected.end);
  EXPECT_EQ(found.questions->questions[0].id, expected.questions->questions[0].id);
}

// A batch is all of a row group that is held.
TEST(RecordSource, ReadsPromptsOfParquetOneByOne) {
  const fs::path path =
      SHERD_TEST_SOURCE_DIR "/tests/data/cases/empty-parquet-shard/parts/part-0.parquet";
  const Source source = open_source(path, {}, {});
  EXPECT_FALSE(source.file.are_questions);
  EXPECT_EQ(records_of(source, {})->unit(), "records");
  expect_samples_of_the_whole(path, {});
  const fs::path squad = SHERD_TEST_SOURCE_DIR "/tests/data/parquet/squad-32.parquet";
  EXPECT_TRUE(open_source(squad, {}, {}).file.are_questions);
  expect_samples_of_the_whole(squad, {});
}

// Of each sample the store knows the record, whatever was left out and however many samples a
// record makes.
TEST(RecordSource, GivesTheRecordsThatSamplesAreOf) {
  for (const char* name : {"stories-chat.jsonl", "stories-alpaca.json", "stories-chat.parquet",
                           "squad-1000-train.json"}) {
    for (const Limit& limit : {Limit{}, Limit{20}, Limit{20, true, 3}}) {
      const FileReading reading = {.bad = {.skip = true}, .side = Side::Training, .held_out = 0.2};
      const Source source = open_source(kShipped / name, reading, {});
      const text::PromptEncoder encoder = chat_stories(200);
      const Prepared prepared = prepare(source, encoder, {.limit = limit});
      std::set<std::int64_t> numbers;
      for (std::size_t i = 0; i < prepared.store->size(); ++i) {
        numbers.insert(prepared.store->record(i));
      }
      const auto records = records_at(source, numbers);
      ASSERT_EQ(records.size(), numbers.size());
      std::vector<text::LabelledPrompt> samples;
      for (const auto& [number, record] : records) {
        const auto of_record = encode_samples(record, 0, encoder);
        samples.insert(samples.end(), of_record.begin(), of_record.end());
      }
      expect_samples(*prepared.store, samples);
    }
  }
}

TEST(RecordSource, CountsConversationsThatMakeSeveralSamples) {
  const Source source = open_source(kShipped / "stories-chat.jsonl", {}, {});
  const text::PromptEncoder encoder = chat_stories();
  const ConversationFigures chat = prepare(source, encoder, {}).report.chat;
  EXPECT_EQ(chat.conversations, 120);
  ConversationFigures expected;
  const text::QuestionFile records = whole(kShipped / "stories-chat.jsonl", {});
  for (std::size_t i = 0; i < records.questions.size(); ++i) {
    expected.add(ConversationFigures(encode_samples(records, i, encoder)));
  }
  EXPECT_EQ(chat.unrolled, expected.unrolled);
  EXPECT_EQ(chat.rewritten, expected.rewritten);
  EXPECT_EQ(chat.apart, expected.apart);
}

}  // namespace
}  // namespace llm::inputs
