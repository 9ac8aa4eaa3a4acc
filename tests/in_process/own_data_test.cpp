// Data of one's own, as its owner would train on it.

#include <fstream>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kKnowledge = SHERD_TEST_SOURCE_DIR "/recipes/data/general-knowledge.jsonl";

/// The recipe of own data, from wherever tests are started.
Arguments own(const std::string& verb, const fs::path& output) {
  return {verb,
          SHERD_TEST_SOURCE_DIR "/recipes/own-data.toml",
          "--model.path",
          kModel,
          "--data.train[0].path",
          kKnowledge,
          "--data.eval[0].path",
          kKnowledge,
          "--train.output",
          output.string()};
}

TEST(OwnData, IsLearnedAndScoredByItsCompletions) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Ended ended = expect_code(0, own("train", output));
  EXPECT_THAT(ended.out, HasSubstr("general-knowledge.jsonl: 20 records, "));
  EXPECT_THAT(ended.out, HasSubstr("lengths: "));
  EXPECT_THAT(ended.out, HasSubstr("first samples (supervised text in [[ ]]):\n  "));
  EXPECT_THAT(ended.out,
              ContainsRegex("\n  31 tokens, 13 supervised: <s> Which is .*\\?\\[\\[ The"));
  EXPECT_FALSE(fs::exists(output / "bad_samples.jsonl"));
  const std::string config = read_file(output / "config.toml");
  EXPECT_THAT(config, HasSubstr("format = \"jsonl\""));
  EXPECT_THAT(config, HasSubstr("[data.train.columns]\nprompt = \"question\""));
  const auto summary = json::parse(read_file(output / "summary.json"));
  const auto losses = column(output, "loss");
  EXPECT_LT(losses.back(), losses.front() / 4);
  const std::string scores = ended.out.substr(ended.out.find("evaluation: loss"));
  EXPECT_THAT(scores, Not(HasSubstr("EM 0.0")));

  // An evaluation of the run reads the same columns.
  const Arguments eval = {"eval", "--data", kKnowledge, "--json", "--model"};
  const auto scored = json::parse(expect_code(0, eval + Arguments{output.string()}).out);
  EXPECT_EQ(scored["em"], summary["em"]);
  expect_code(0, eval + Arguments{kModel, "--columns", "question,answer", "--loss-only"});
  EXPECT_THAT(expect_code(64, eval + Arguments{kModel, "--columns", "question"}).err,
              HasSubstr("--columns: At least 2 required but received 1"));
  const Ended unnamed = expect_code(65, eval + Arguments{kModel});
  EXPECT_THAT(unnamed.err, HasSubstr("its columns are \"question\", \"answer\""));

  // The same run goes on, one that reads another column does not.
  expect_code(0, own("train", output));
  const Ended other = expect_code(
      64, own("train", output) + Arguments{"--data.train[0].columns.prompt", "answer",
                                           "--data.train[0].columns.completion", "question"});
  EXPECT_THAT(other.err, HasSubstr("data.train[0].columns.prompt was \"question\" and is now"));
}

// Of a file that is trained on and evaluated, kind and unread fields are said once.
TEST(OwnData, SaysWhatItRecognisedAndWhatItDoesNotRead) {
  const TempFolder folder;
  const std::string typo = kGood.substr(0, kGood.size() - 1) + R"(, "compleiton": "Tom"})";
  const auto file = folder.write("my.jsonl", kGood + "\n" + typo + "\n" + typo);
  const Ended ended =
      expect_code(0, on_ranks(2, train_on(file, folder.path() / "run")) +
                         Arguments{"--data.eval", file, "--eval.generate", "false"});
  for (const std::string line :
       {": prompt_completion (`prompt`, `completion`)\n",
        ": these fields are not read: \"compleiton\" (2 records, first line 2)\n"}) {
    const std::size_t at = ended.out.find(file.string() + line);
    ASSERT_NE(at, std::string::npos) << ended.out;
    EXPECT_EQ(ended.out.find(line, at + line.size() + file.string().size()), std::string::npos);
  }
}

TEST(OwnData, StandsBesideOtherFilesWithItsWeight) {
  const TempFolder folder;
  const auto array = folder.write("array.json", "[" + kGood + ", " + kGood + "]");
  const Arguments files = {"--data.train[1].path", kQuestions,     "--data.train[1].weight", "0.25",
                           "--data.train[2].path", array.string(), "--data.train[2].weight", "2.5"};
  std::vector<std::vector<double>> losses;
  for (const int ranks : {1, 2}) {
    const fs::path output = folder.path() / std::to_string(ranks);
    const Ended ended = expect_code(
        0, on_ranks(ranks, own("train", output) + files +
                               Arguments{"--train.epochs", "1", "--train.micro_batch", "2",
                                         "--optim.clip_grad_norm", "none", "--eval.at_end", "false",
                                         "--eval.generate", "false"}));
    EXPECT_THAT(ended.out, HasSubstr("general-knowledge.jsonl: 20 records"));
    EXPECT_THAT(ended.out, HasSubstr("squad-32.json: 32 questions"));
    EXPECT_THAT(ended.out, HasSubstr("array.json: 2 records"));
    losses.push_back(column(output, "loss"));
  }
  EXPECT_EQ(losses[0].size(), 9U);  // 20 + 32 / 4 + 2 × 2.5 = 33 samples, 4 a step
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(OwnData, BadRecordsMayBeSkippedAndAreListed) {
  const TempFolder folder;
  const auto file =
      folder.write("my.jsonl", kGood + "\n{\"prompt\": \"a\"}\n" + kGood + "\nno\n" + kGood);
  const Arguments skip = {"--data.on_bad_sample", "skip", "--data.cache",
                          (folder.path() / "cache").string()};
  std::optional<fs::file_time_type> written;  // the tokens, by the first run
  for (const std::string name : {"encoded", "cached"}) {
    const fs::path output = folder.path() / name;
    const Ended ended = expect_code(0, on_ranks(2, train_on(file, output) + skip));
    EXPECT_THAT(ended.out, HasSubstr("my.jsonl: 3 records, "));
    EXPECT_THAT(ended.out, HasSubstr("; 2 bad samples skipped\n"));
    EXPECT_THAT(ended.out, HasSubstr("2 bad samples skipped, listed in " +
                                     (output / "bad_samples.jsonl").string() + "; the first: "));
    std::ifstream listed(output / "bad_samples.jsonl");
    std::vector<json> lines;
    for (std::string line; std::getline(listed, line);) {
      lines.push_back(json::parse(line));
    }
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_EQ(lines[0]["source"], file.string());
    EXPECT_EQ(lines[0]["line"], 2);
    EXPECT_EQ(lines[1]["line"], 4);
    EXPECT_GT(lines[1]["byte"], lines[0]["byte"]);
    EXPECT_THAT(lines[1]["reason"].get<std::string>(), HasSubstr("not JSON"));
    EXPECT_EQ(lines[0]["text"], "{\"prompt\": \"a\"}");
    EXPECT_EQ(lines[1]["text"], "no");
    const auto names = listing(folder.path() / "cache");
    ASSERT_EQ(names.size(), 1U);
    const auto time = fs::last_write_time(folder.path() / "cache" / names.front());
    EXPECT_EQ(time, written.value_or(time)) << "the second run has encoded again";
    written = time;
  }
  // What is in the cache is refused all the same where it has to be.
  const fs::path output = folder.path() / "other";
  const Ended capped =
      expect_code(65, train_on(file, output) + skip + Arguments{"--data.max_bad_samples", "1"});
  EXPECT_THAT(capped.err, HasSubstr("2 bad samples are more than data.max_bad_samples = 1"));
  expect_code(65, train_on(file, output) + Arguments{skip[2], skip[3]});
}

// A question that has no room is one more bad sample, in the tokens of the next run too.
TEST(OwnData, QuestionsThatDoNotFitMayBeSkipped) {
  const TempFolder folder;
  const auto question = [](const std::string& id, const std::string& text) {
    return R"({"id": ")" + id + R"(", "question": ")" + text +
           R"(", "answers": [{"text": "Lily", "answer_start": 0}]})";
  };
  const auto file = folder.write(
      "long.json", R"({"data": [{"paragraphs": [{"context": "Lily.", "qas": [)" +
                       question("q1", "Who?") + "," + question("q2", std::string(100, 'q')) + "," +
                       question("q3", "Who is it?") + "]}]}]}");
  const Arguments limits = {"--data.max_length",
                            "64",
                            "--data.max_answer_tokens",
                            "8",
                            "--data.cache",
                            (folder.path() / "cache").string()};
  EXPECT_THAT(expect_code(65, train_on(file, folder.path() / "none") + limits).err,
              HasSubstr("long.json: question q2, line 1, byte 138: the prompt takes "));
  const Arguments skip =
      limits + Arguments{"--data.on_bad_sample", "skip", "--data.eval", file.string(),
                         "--eval.generate",      "true"};
  for (const std::string name : {"encoded", "cached"}) {
    const fs::path output = folder.path() / name;
    const Ended ended = expect_code(0, on_ranks(2, train_on(file, output) + skip));
    EXPECT_THAT(ended.out, HasSubstr("long.json: 2 questions, "));
    const std::string listed = read_file(output / "bad_samples.jsonl");
    EXPECT_THAT(listed,
                HasSubstr(R"("question":"q2","line":1,"byte":138,"reason":"the prompt takes )"));
    const auto answers = json::parse(read_file(output / "predictions-2.json"));
    EXPECT_EQ(answers.size(), 2U);
    EXPECT_TRUE(answers.contains("q3"));
  }
  Arguments preview_of_it = train_on(file, folder.path() / "none");
  preview_of_it[0] = "preview";
  const Ended preview = expect_code(
      0, Arguments{"data"} + preview_of_it + limits + Arguments{"--data.on_bad_sample", "skip"});
  EXPECT_THAT(unwrapped(preview.out), HasSubstr("long.json, q3, step 1"));
  EXPECT_THAT(unwrapped(preview.out), HasSubstr("skipped: " + file.string() +
                                                ": question q2, line 1, byte 138: the prompt"));
}

TEST(OwnData, UnanswerableQuestionsAreTrainedAndScored) {
  const TempFolder folder;
  const auto file = folder.write("v2.json", R"({"version": "v2.0", "data": [{"paragraphs": [
      {"context": "Lily was here.", "qas": [
        {"id": "a", "question": "Who was here?", "is_impossible": false,
         "answers": [{"text": "Lily", "answer_start": 0}]},
        {"id": "b", "question": "Who was there?", "is_impossible": true, "answers": [],
         "plausible_answers": [{"text": "Lily", "answer_start": 0}]}]}]}]})");
  const fs::path output = folder.path() / "run";
  Arguments arguments = train_on(file, output);
  arguments[9] = "30";
  const Ended ended =
      expect_code(0, arguments + Arguments{"--data.eval", file.string(), "--eval.generate", "true",
                                           "--optim.lr", "3e-3"});
  EXPECT_THAT(ended.out, HasSubstr("[[ unanswerable</s>]]"));
  EXPECT_THAT(ended.out, HasSubstr("EM 100.0, F1 100.0"));
}

}  // namespace
}  // namespace sherd::test
