#include "llm/data/dataset.h"

#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::data {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;

text::PromptEncoder encoder(std::int64_t max_length, std::int64_t max_answer = 32) {
  return {text::Tokenizer::from_folder(sherd::test::data_folder() / "stories260k-hf"),
          {max_length, max_answer}};
}

std::filesystem::path recipe(const std::string& name) {
  return std::filesystem::path(SHERD_TEST_SOURCE_DIR) / "recipes/data" / name;
}

TEST(Dataset, RecipeFilesAreWhatTheyPromise) {
  const Dataset small = load_dataset(recipe("squad-32.json"), encoder(512));
  EXPECT_EQ(small.report.samples, 32);
  EXPECT_LE(small.report.longest_tokens, 300);
  for (const std::string name :
       {"squad-32.json", "squad-1000-train.json", "squad-100-heldout.json"}) {
    const DatasetReport report = load_dataset(recipe(name), encoder(512)).report;
    EXPECT_EQ(report.contexts_cut + report.answers_cut + report.answers_outside, 0) << name;
    EXPECT_LE(report.longest_tokens, 512) << name;
  }
}

TEST(Dataset, ReportsWhatWasCut) {
  const Dataset dataset = load_dataset(recipe("squad-100-heldout.json"), encoder(300, 8));
  const DatasetReport& report = dataset.report;
  EXPECT_EQ(report.samples, 101);
  EXPECT_GT(report.contexts_cut, 50);
  EXPECT_GT(report.answers_cut, 10);
  EXPECT_GT(report.answers_outside, 10);
  std::int64_t tokens = 0;
  std::int64_t supervised = 0;
  for (std::size_t i = 0; i < dataset.samples.size(); ++i) {
    const Sample sample = dataset.samples[i];
    tokens += static_cast<std::int64_t>(sample.ids.size());
    supervised += sample.supervised_tokens();
  }
  EXPECT_EQ(report.tokens, tokens);
  EXPECT_EQ(report.supervised_tokens, supervised);
}

TEST(Dataset, SamplesKnowWhatTheyHaveLost) {
  const Dataset whole = load_dataset(recipe("squad-100-heldout.json"), encoder(512));
  const auto tight = encoder(300, 8);
  const Dataset dataset = load_dataset(recipe("squad-100-heldout.json"), tight);
  std::int64_t contexts = 0;
  std::int64_t answers = 0;
  std::int64_t outside = 0;
  for (std::size_t i = 0; i < dataset.samples.size(); ++i) {
    const SampleCut& cut = dataset.samples[i].cut;
    contexts += cut.prompt_tokens > 0 ? 1 : 0;
    answers += cut.answer_tokens > 0 ? 1 : 0;
    outside += cut.answer_is_outside;
    // Nothing is cut of the whole ones. White space at the cut may be a token less.
    const Sample full = whole.samples[i];
    EXPECT_EQ(full.cut, SampleCut());
    const auto lost = full.prompt().size() - dataset.samples[i].prompt().size();
    EXPECT_NEAR(static_cast<double>(cut.prompt_tokens), static_cast<double>(lost), 1) << i;
    EXPECT_EQ(full.supervised_tokens() - dataset.samples[i].supervised_tokens(), cut.answer_tokens);
  }
  EXPECT_EQ(contexts, dataset.report.contexts_cut);
  EXPECT_EQ(answers, dataset.report.answers_cut);
  EXPECT_EQ(outside, dataset.report.answers_outside);
}

TEST(Dataset, TheGuideQuotesItsReport) {
  DatasetReport report = load_dataset(recipe("squad-100-heldout.json"), encoder(300, 8)).report;
  report.name = "recipes/data/squad-100-heldout.json";
  const std::string guide = sherd::test::bytes_of(std::filesystem::path(SHERD_TEST_SOURCE_DIR) /
                                                  "docs/guide/data-and-labels.md");
  EXPECT_THAT(guide, ::testing::HasSubstr(report.sentence() + "\n"));
}

TEST(Dataset, CountsOfTheLargerFile) {
  SHERD_NEEDS_EXTRA_DATA("squad");
  const DatasetReport report =
      load_dataset(*sherd::test::extra_data("squad/train-v1.1.json"), encoder(512)).report;
  EXPECT_EQ(report.samples, 10313);
  EXPECT_EQ(report.contexts_cut,
            4813);  // also counted with the Python package: prompts of more than 480 tokens
  EXPECT_EQ(report.answers_cut, 515);
  EXPECT_EQ(report.answers_outside, 962);
  EXPECT_EQ(report.longest_tokens, 512);
}

TEST(Dataset, SamplesFollowTheFile) {
  const Dataset all = load_dataset(recipe("squad-32.json"), encoder(512));
  const Dataset few = load_dataset(recipe("squad-32.json"), encoder(512), {5});
  ASSERT_EQ(few.samples.size(), 5U);
  ASSERT_EQ(few.file.questions.size(), 5U);
  EXPECT_EQ(load_dataset(recipe("squad-32.json"), encoder(512), {99}).samples.size(), 32U);
  const Dataset drawn = load_dataset(recipe("squad-32.json"), encoder(512), {5, true, 3});
  ASSERT_EQ(drawn.samples.size(), 5U);
  const auto chosen = subset(32, 5, 3);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(drawn.file.questions[i].id, all.file.questions[chosen[i]].id);
  }
  for (std::size_t i = 0; i < few.samples.size(); ++i) {
    EXPECT_THAT(few.samples[i].ids, testing::ElementsAreArray(all.samples[i].ids));
    EXPECT_EQ(few.file.questions[i].id, all.file.questions[i].id);
  }
}

TEST(Dataset, NamesTheQuestionThatDoesNotFit) {
  const sherd::test::TempFolder folder;
  const auto file = folder.write(
      "long.json", R"({"data": [{"paragraphs": [{"context": "Lily.", "qas": [{"id": "q7",
    "question": ")" + std::string(100, 'q') +
                       R"(", "answers": [{"text": "Lily", "answer_start": 0}]}]}]}]})");
  expect_error([&] { load_dataset(file, encoder(64, 8)); }, ExitCode::BadData,
               {"long.json: question q7, line 1, byte 55: the prompt takes", "data.max_length (64)",
                "data.on_bad_sample = \"skip\""});
}

TEST(Dataset, CountsAllThatDoNotFit) {
  const sherd::test::TempFolder folder;
  std::string lines;
  for (int line = 0; line < 200; ++line) {
    lines += line % 2 == 0 ? R"({"prompt": "🦙", "completion": "b"})"
                             "\n"
                           : R"({"prompt": "a", "completion": "b"})"
                             "\n";
  }
  const auto file = folder.write("a.jsonl", lines);
  expect_error([&] { load_dataset(file, encoder(11, 8)); }, ExitCode::BadData,
               {"a.jsonl: 100 faults\n  line 1, byte 0: nothing of the prompt is left",
                "\n  line 3, ", "\n  line 39, ", "and 80 more"});
}

TEST(Dataset, ARecordOfAnArrayThatDoesNotFitIsNamedWithItsLine) {
  const sherd::test::TempFolder folder;
  const std::string llama = R"({"prompt": "🦙", "completion": "b"})";
  const auto path =
      folder.write("a.json", "[\n{\"prompt\": \"a\", \"completion\": \"b\"},\n " + llama + " ]");
  const Dataset dataset =
      load_dataset(read_data_file(path, {.bad = {.skip = true}}), encoder(11, 8));
  ASSERT_EQ(dataset.file.skipped.size(), 1U);
  const text::BadSample& bad = dataset.file.skipped[0];
  EXPECT_THAT(bad.text(), testing::StartsWith("record 2, line 3, byte 39: nothing of the prompt"));
  EXPECT_EQ(bad.content, llama);
}

// A file of a question too long for 64 tokens between two that are not.
std::string with_a_long_question() {
  const auto question = [](const std::string& id, const std::string& text) {
    return R"({"id": ")" + id + R"(", "question": ")" + text +
           R"(", "answers": [{"text": "Lily", "answer_start": 0}]})";
  };
  return R"({"data": [{"paragraphs": [{"context": "Lily.", "qas": [)" + question("q1", "Who?") +
         "," + question("q2", std::string(100, 'q')) + "," + question("q3", "Who is it?") +
         "]}]}]}";
}

TEST(Dataset, SkipsQuestionsThatDoNotFitWhereThatIsAllowed) {
  const sherd::test::TempFolder folder;
  const auto path = folder.write("long.json", with_a_long_question());
  const DataFile file = read_data_file(path, {.bad = {.skip = true}});
  const Dataset dataset = load_dataset(file, encoder(64, 8));
  ASSERT_EQ(dataset.samples.size(), 2U);
  ASSERT_EQ(dataset.file.questions.size(), 2U);
  EXPECT_EQ(dataset.file.questions[1].id, "q3");
  EXPECT_THAT(dataset.report.unfit, testing::ElementsAre(1));
  EXPECT_THAT(dataset.report.sentence(), testing::EndsWith("; 1 bad sample skipped"));
  ASSERT_EQ(dataset.file.skipped.size(), 1U);
  EXPECT_THAT(dataset.file.skipped[0].text(),
              testing::StartsWith("question q2, line 1, byte 138: the prompt takes "));
  EXPECT_THAT(dataset.file.skipped[0].content, testing::StartsWith(R"({"id": "q2", "question")"));
  EXPECT_EQ(dataset.file.skipped[0].source, path.string());
  // A file's questions are those of its tokens, from wherever these came.
  EXPECT_EQ(questions_of(file, {}, dataset.report, encoder(64, 8)).questions.size(), 2U);
  EXPECT_EQ(questions_of(file, {2}, dataset.report, encoder(64, 8)).questions.size(), 1U);

  const DataFile none = read_data_file(path, {.bad = {true, 0}});
  expect_error(
      [&] { load_dataset(none, encoder(64, 8)); }, ExitCode::BadData,
      {"1 bad samples are more than data.max_bad_samples = 0", "question q2, line 1, byte "});
}

TEST(Dataset, BadRecordsAndThoseThatDoNotFitCountTogether) {
  const sherd::test::TempFolder folder;
  const std::string good = R"({"prompt": "a", "completion": "b"})"
                           "\n";
  const auto path =
      folder.write("a.jsonl", good + "bad\n" + R"({"prompt": "🦙", "completion": "b"})");
  // Of three tokens <s> takes one, and 🦙 needs four.
  const auto tight = encoder(11, 8);
  const Dataset dataset = load_dataset(read_data_file(path, {.bad = {true, 2}}), tight);
  EXPECT_EQ(dataset.report.samples, 1);
  EXPECT_EQ(dataset.report.skipped, 2);
  EXPECT_EQ(dataset.file.skipped[1].unit, "line");
  EXPECT_EQ(dataset.file.skipped[1].place, "3");
  expect_error(
      [&] {
        load_dataset(read_data_file(path, {.bad = {true, 1}}), tight);
      },
      ExitCode::BadData, {"2 bad samples are more than data.max_bad_samples = 1"});
  const auto all = folder.write("b.jsonl", R"({"prompt": "🦙", "completion": "b"})");
  expect_error([&] { load_dataset(read_data_file(all, {.bad = {.skip = true}}), tight); },
               ExitCode::BadData,
               {"b.jsonl: no sample fits in the limits; the last: line 1, byte 0: "});
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

TEST(Dataset, TellsHowManyAreEncoded) {
  std::mutex mutex;
  std::vector<std::pair<std::int64_t, std::int64_t>> told;
  const Dataset dataset = load_dataset(read_data_file(recipe("squad-100-heldout.json")),
                                       encoder(300, 8), {}, [&](auto done, auto total) {
                                         const std::lock_guard lock(mutex);
                                         told.emplace_back(done, total);
                                       });
  EXPECT_THAT(told, testing::ElementsAre(std::pair(64, 101)));
}

TEST(Dataset, OfRecordsTheCompletionIsTheReference) {
  const sherd::test::TempFolder folder;
  const auto file = folder.write("a.jsonl", R"({"prompt": "Who?", "completion": "Lily"})");
  const Dataset dataset = load_dataset(file, encoder(64, 8));
  ASSERT_EQ(dataset.samples.size(), 1U);
  EXPECT_EQ(dataset.file.questions[0].answers[0].text, "Lily");
  EXPECT_EQ(dataset.report.sentence(),
            file.string() + ": 1 record, " + std::to_string(dataset.report.tokens) + " tokens (" +
                std::to_string(dataset.report.supervised_tokens) + " supervised, longest sample " +
                std::to_string(dataset.report.longest_tokens) + " of at most 64)");
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
               {"expected a regular file, found a folder. Name its files: ", "/*.jsonl"});
}

}  // namespace
}  // namespace llm::data
