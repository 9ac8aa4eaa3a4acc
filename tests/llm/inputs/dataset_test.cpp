// What is made and told of a data set.

#include "llm/inputs/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/inputs/record_source.h"
#include "tests/llm/inputs/data_files.h"
#include "tests/llm/inputs/stores.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::inputs {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;
using testing::ElementsAre;

std::filesystem::path recipe(const std::string& name) {
  return std::filesystem::path(SHERD_TEST_SOURCE_DIR) / "recipes/data" / name;
}

TEST(Dataset, RecipeFilesAreWhatTheyPromise) {
  const Dataset small = dataset(recipe("squad-32.json"), stories(512));
  EXPECT_EQ(small.report.samples, 32);
  EXPECT_LE(small.report.longest_tokens, 300);
  for (const std::string name :
       {"squad-32.json", "squad-1000-train.json", "squad-100-heldout.json"}) {
    const DatasetReport report = dataset(recipe(name), stories(512)).report;
    EXPECT_EQ(report.contexts_cut + report.answers_cut + report.answers_outside, 0) << name;
    EXPECT_LE(report.longest_tokens, 512) << name;
  }
}

TEST(Dataset, ReportsWhatWasCut) {
  const Dataset found = dataset(recipe("squad-100-heldout.json"), stories(300, 8));
  const DatasetReport& report = found.report;
  EXPECT_EQ(report.samples, 101);
  EXPECT_GT(report.contexts_cut, 50);
  EXPECT_GT(report.answers_cut, 10);
  EXPECT_GT(report.answers_outside, 10);
  std::int64_t tokens = 0;
  std::int64_t supervised = 0;
  for (std::size_t i = 0; i < found.samples.size(); ++i) {
    const Sample sample = found.samples[i];
    tokens += static_cast<std::int64_t>(sample.ids.size());
    supervised += sample.supervised_tokens();
  }
  EXPECT_EQ(report.tokens, tokens);
  EXPECT_EQ(report.supervised_tokens, supervised);
}

TEST(Dataset, SamplesKnowWhatTheyHaveLost) {
  const Dataset whole = dataset(recipe("squad-100-heldout.json"), stories(512));
  const auto tight = stories(300, 8);
  const Dataset found = dataset(recipe("squad-100-heldout.json"), tight);
  std::int64_t contexts = 0;
  std::int64_t answers = 0;
  std::int64_t outside = 0;
  for (std::size_t i = 0; i < found.samples.size(); ++i) {
    const SampleCut& cut = found.samples[i].cut;
    contexts += cut.prompt_tokens > 0 ? 1 : 0;
    answers += cut.answer_tokens > 0 ? 1 : 0;
    outside += cut.answer_is_outside;
    // Nothing is cut of the whole ones. White space at the cut may be a token less.
    const Sample full = whole.samples[i];
    EXPECT_EQ(full.cut, SampleCut());
    const auto lost = full.prompt().size() - found.samples[i].prompt().size();
    EXPECT_NEAR(static_cast<double>(cut.prompt_tokens), static_cast<double>(lost), 1) << i;
    EXPECT_EQ(full.supervised_tokens() - found.samples[i].supervised_tokens(), cut.answer_tokens);
  }
  EXPECT_EQ(contexts, found.report.contexts_cut);
  EXPECT_EQ(answers, found.report.answers_cut);
  EXPECT_EQ(outside, found.report.answers_outside);
}

TEST(Dataset, TheGuideQuotesItsReport) {
  DatasetReport report = dataset(recipe("squad-100-heldout.json"), stories(300, 8)).report;
  report.name = "recipes/data/squad-100-heldout.json";
  const std::string guide = sherd::test::bytes_of(std::filesystem::path(SHERD_TEST_SOURCE_DIR) /
                                                  "docs/guide/data-and-labels.md");
  EXPECT_THAT(guide, ::testing::HasSubstr(report.sentence() + "\n"));
}

TEST(Dataset, CountsOfTheLargerFile) {
  SHERD_NEEDS_EXTRA_DATA("squad");
  const DatasetReport report =
      dataset(*sherd::test::extra_data("squad/train-v1.1.json"), stories(512)).report;
  EXPECT_EQ(report.samples, 10313);
  EXPECT_EQ(report.contexts_cut,
            4813);  // also counted with the Python package: prompts of more than 480 tokens
  EXPECT_EQ(report.answers_cut, 515);
  EXPECT_EQ(report.answers_outside, 962);
  EXPECT_EQ(report.longest_tokens, 512);
}

TEST(Dataset, SamplesFollowTheFile) {
  const Dataset all = dataset(recipe("squad-32.json"), stories(512));
  const Dataset few = dataset(recipe("squad-32.json"), stories(512), {}, {5});
  ASSERT_EQ(few.samples.size(), 5U);
  EXPECT_EQ(dataset(recipe("squad-32.json"), stories(512), {}, {99}).samples.size(), 32U);
  const Dataset drawn = dataset(recipe("squad-32.json"), stories(512), {}, {5, true, 3});
  ASSERT_EQ(drawn.samples.size(), 5U);
  const auto chosen = subset(32, 5, 3);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(drawn.record(i).id, all.record(chosen[i]).id);
  }
  for (std::size_t i = 0; i < few.samples.size(); ++i) {
    EXPECT_THAT(few.samples[i].ids, testing::ElementsAreArray(all.samples[i].ids));
    EXPECT_EQ(few.record(i).id, all.record(i).id);
  }
}

TEST(Dataset, NamesTheQuestionThatDoesNotFit) {
  const sherd::test::TempFolder folder;
  const auto file = folder.write(
      "long.json", R"({"data": [{"paragraphs": [{"context": "Lily.", "qas": [{"id": "q7",
    "question": ")" + std::string(100, 'q') +
                       R"(", "answers": [{"text": "Lily", "answer_start": 0}]}]}]}]})");
  expect_error([&] { dataset(file, stories(64, 8)); }, ExitCode::BadData,
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
  expect_error([&] { dataset(file, stories(11, 8)); }, ExitCode::BadData,
               {"a.jsonl: 100 faults\n  line 1, byte 0: nothing of the prompt is left",
                "\n  line 3, ", "\n  line 39, ", "and 80 more"});
}

TEST(Dataset, ARecordOfAnArrayThatDoesNotFitIsNamedWithItsLine) {
  const sherd::test::TempFolder folder;
  const std::string llama = R"({"prompt": "🦙", "completion": "b"})";
  const auto path =
      folder.write("a.json", "[\n{\"prompt\": \"a\", \"completion\": \"b\"},\n " + llama + " ]");
  const Dataset found = dataset(path, stories(11, 8), {.bad = {.skip = true}});
  ASSERT_EQ(found.skipped.size(), 1U);
  const text::BadSample& bad = found.skipped[0];
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
  const Dataset found = dataset(path, stories(64, 8), {.bad = {.skip = true}});
  ASSERT_EQ(found.samples.size(), 2U);
  EXPECT_EQ(found.record(1).id, "q3");
  EXPECT_THAT(found.report.sentence(), testing::EndsWith("; 1 bad sample skipped"));
  ASSERT_EQ(found.skipped.size(), 1U);
  EXPECT_THAT(found.skipped[0].text(),
              testing::StartsWith("question q2, line 1, byte 138: the prompt takes "));
  EXPECT_THAT(found.skipped[0].content, testing::StartsWith(R"({"id": "q2", "question")"));
  EXPECT_EQ(found.skipped[0].source, path.string());
  EXPECT_EQ(dataset(path, stories(64, 8), {.bad = {.skip = true}}, {2}).samples.size(), 1U);
  expect_error(
      [&] {
        dataset(path, stories(64, 8), {.bad = {true, 0}});
      },
      ExitCode::BadData,
      {"1 bad sample is more than data.max_bad_samples = 0", "question q2, line 1, byte "});
}

TEST(Dataset, BadRecordsAndThoseThatDoNotFitCountTogether) {
  const sherd::test::TempFolder folder;
  const std::string good = R"({"prompt": "a", "completion": "b"})"
                           "\n";
  const auto path =
      folder.write("a.jsonl", good + "bad\n" + R"({"prompt": "🦙", "completion": "b"})");
  // Of three tokens <s> takes one, and 🦙 needs four.
  const auto tight = stories(11, 8);
  const Dataset found = dataset(path, tight, {.bad = {true, 2}});
  EXPECT_EQ(found.report.samples, 1);
  EXPECT_EQ(found.report.skipped, 2);
  EXPECT_EQ(found.skipped[1].unit, "line");
  EXPECT_EQ(found.skipped[1].place, "3");
  expect_error(
      [&] {
        dataset(path, tight, {.bad = {true, 1}});
      },
      ExitCode::BadData, {"2 bad samples are more than data.max_bad_samples = 1"});
  expect_error(
      [&] {
        dataset(path, tight, {.bad = {true, 0}});
      },
      ExitCode::BadData, {"1 bad sample is more than data.max_bad_samples = 0"});
  const auto all = folder.write("b.jsonl", R"({"prompt": "🦙", "completion": "b"})");
  expect_error([&] { dataset(all, tight, {.bad = {.skip = true}}); }, ExitCode::BadData,
               {"b.jsonl: no sample fits in the limits; the last: line 1, byte 0: "});
}

TEST(Dataset, TellsHowManyAreEncoded) {
  std::vector<std::pair<std::int64_t, std::int64_t>> told;
  PrepareOptions options;
  options.on_progress = [&](std::int64_t done, std::int64_t total, const std::string& unit) {
    EXPECT_EQ(unit, "samples");
    told.emplace_back(done, total);
  };
  const Source source = open_source(recipe("squad-100-heldout.json"), {}, {});
  static_cast<void>(prepare(source, stories(300, 8), options));
  EXPECT_THAT(told, testing::ElementsAre(std::pair(101, 101)));
}

TEST(Dataset, OfRecordsTheCompletionIsTheReference) {
  const sherd::test::TempFolder folder;
  const auto file = folder.write("a.jsonl", R"({"prompt": "Who?", "completion": "Lily"})");
  const Dataset found = dataset(file, stories(64, 8));
  ASSERT_EQ(found.samples.size(), 1U);
  EXPECT_EQ(found.record(0).answers[0].text, "Lily");
  EXPECT_EQ(found.report.sentence(),
            file.string() + ": 1 record, " + std::to_string(found.report.tokens) + " tokens (" +
                std::to_string(found.report.supervised_tokens) + " supervised, longest sample " +
                std::to_string(found.report.longest_tokens) + " of at most 64)");
}

// A conversation is cut at its end, where a record without turns loses the begin of its prompt.
TEST(Dataset, OfConversationsTellsThatTheirEndIsCut) {
  const sherd::test::TempFolder folder;
  const std::string turns =
      R"({"role": "user", "content": "Who went to the park with Tom, and who stayed at home?"},)"
      R"( {"role": "assistant", "content": "Lily went with Tom, and her little dog stayed."})";
  const std::string last = R"(, {"role": "user", "content": "And who went with her to the park?"},)"
                           R"( {"role": "assistant", "content": "Tom"})";
  const auto line = [](const std::string& messages) {
    return "{\"messages\": [" + messages + "]}\n";
  };
  const auto file = folder.write("a.jsonl", line(turns) + line(turns + last));
  const auto whole = dataset(folder.write("b.jsonl", line(turns)), chat_stories(512));
  const Dataset found = dataset(file, chat_stories(whole.report.longest_tokens));
  EXPECT_THAT(found.report.sentence(),
              testing::EndsWith("; conversation cut at its end in 1, answer cut with it in 1"));
  const Dataset uncut = dataset(file, chat_stories(512));
  EXPECT_THAT(uncut.report.sentence(), testing::Not(testing::HasSubstr(" cut")));
  // Beside records of the other kind.
  const auto mixed =
      folder.write("c.jsonl", line(turns + last) + R"({"prompt": ")" + std::string(3000, 'x') +
                                  R"(", "completion": "Lily"})" + "\n");
  const FileReading lines = {.format = config::DataFormat::Jsonl};
  EXPECT_THAT(dataset(mixed, chat_stories(whole.report.longest_tokens), lines).report.sentence(),
              testing::EndsWith(
                  "; prompt cut in 1, conversation cut at its end in 1, answer cut with it in 1"));
}

std::vector<std::string> prompts_of(const Dataset& dataset) {
  std::vector<std::string> prompts;
  for (std::size_t i = 0; i < dataset.samples.size(); ++i) {
    prompts.push_back(dataset.record(i).question);
  }
  return prompts;
}

TEST(DataFile, RecordsOfSeveralFilesAreTheirsInOrder) {
  const Split split;
  const Dataset all = dataset(split.path("train-*.jsonl"), stories());
  EXPECT_THAT(prompts_of(all),
              ElementsAre("p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10"));
  EXPECT_EQ(all.record(4).id, "line 1 of train-00001-of-00003.jsonl");
  EXPECT_EQ(all.record(4).file, 1U);
}

TEST(DataFile, ALimitIsOfAllFilesTogether) {
  const Split split;
  const std::string train = split.path("train-*.jsonl");
  const auto first = prompts_of(dataset(train, stories(), {}, {6}));
  EXPECT_THAT(first, ElementsAre("p0", "p1", "p2", "p3", "p4", "p5"));
  const auto one = split.folder.write("one.jsonl", records(0, 11));
  for (const std::uint64_t seed : {1, 2}) {
    const Limit drawn = {6, true, seed};
    EXPECT_EQ(prompts_of(dataset(train, stories(), {}, drawn)),
              prompts_of(dataset(one, stories(), {}, drawn)));
  }
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
    return prompts_of(dataset(folder.path() / pattern, stories(), {.bad = {.skip = true}}));
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
    expect_error([&] { dataset(path, stories(), {.bad = {.skip = true}}); }, ExitCode::BadData,
                 {path + ": " + message});
  };
  refused("a-*.jsonl", "contains no records");
  refused("a-0.jsonl", "contains no records");
  refused("b.jsonl", "contains no good record; the first: line 1, byte 0: has no \"prompt\"");
  refused("c.json", "contains no questions");
  refused("d.json", "contains no records");
}

TEST(DataFile, BadSamplesOfAllFilesCountTogether) {
  const TempFolder folder;
  const auto first = folder.write("a.jsonl", record(0) + "bad\n");
  const auto second = folder.write("b.jsonl", "bad\n" + record(1));
  const auto path = folder.path() / "*.jsonl";
  const Dataset all = dataset(path, stories(), {.bad = {true, 2}});
  EXPECT_THAT(prompts_of(all), ElementsAre("p0", "p1"));
  ASSERT_EQ(all.skipped.size(), 2U);
  EXPECT_EQ(all.skipped[0].source, first.string());
  EXPECT_EQ(all.skipped[0].place, "2");
  EXPECT_EQ(all.skipped[0].content, "bad");
  EXPECT_EQ(all.skipped[1].source, second.string());
  EXPECT_EQ(all.skipped[1].place, "1");
  expect_error(
      [&] {
        dataset(path, stories(), {.bad = {true, 1}});
      },
      ExitCode::BadData,
      {"2 bad samples are more than data.max_bad_samples = 1", first.string() + ": line 2"});
  expect_error([&] { dataset(path, stories()); }, ExitCode::BadData,
               {first.string() + ": line 2, byte "});
}

// Of the second file; places are those there.
TEST(DataFile, WhatDoesNotFitIsNamedWithItsFile) {
  const TempFolder folder;
  folder.write("a.jsonl", record(0));
  const std::string llama = R"({"prompt": "🦙", "completion": "b"})";
  const auto second = folder.write("b.jsonl", record(1) + llama + "\n");
  const Dataset found = dataset(folder.path() / "*.jsonl", stories(11, 8), {.bad = {.skip = true}});
  EXPECT_EQ(found.samples.size(), 2U);
  ASSERT_EQ(found.skipped.size(), 1U);
  const text::BadSample& bad = found.skipped[0];
  EXPECT_EQ(bad.source, second.string());
  EXPECT_EQ(bad.unit, "line");
  EXPECT_EQ(bad.place, "2");
  EXPECT_EQ(bad.byte, static_cast<std::int64_t>(record(1).size()));
  EXPECT_EQ(bad.content, llama);
}

}  // namespace
}  // namespace llm::inputs
