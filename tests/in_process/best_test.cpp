// What evaluations of a run lead to: the best is known and kept, and the run may end early.

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(AtStart, IsEvaluatedOnceBeforeTheFirstStep) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run =
      train(output, "3") +
      Arguments{"--data.eval[0].path",        kQuestions, "--data.eval[0].limit", "8",
                "--data.eval[0].limit_order", "file",     "--eval.at_start",      "true",
                "--checkpoint.every",         "2 steps"};
  const Ended ended = expect_code(0, run);
  EXPECT_THAT(ended.out, HasSubstr("evaluating 8 questions before the first step"));
  EXPECT_THAT(steps_of(output, "evaluation"), ElementsAre(0, 3));
  const auto evaluations = events(output, "evaluation");
  const auto found = summary(output);
  EXPECT_EQ(found.at("eval_loss_at_start"), evaluations[0].at("loss"));
  EXPECT_EQ(found.at("eval_loss"), evaluations[1].at("loss"));
  // The loss of the model as it came.
  const Ended plain =
      expect_code(0, {"eval", kModel, "--data", kQuestions, "--limit", "8", "--loss-only", "--json",
                      "--max-length", "128", "--dtype", "float32"});
  EXPECT_NEAR(nlohmann::json::parse(plain.out).at("loss").get<double>(),
              evaluations[0].at("loss").get<double>(), 1e-5);
  EXPECT_NE(evaluations[0].at("loss"), evaluations[1].at("loss"));

  fs::remove_all(output / "checkpoints/step-00000003");
  const Ended again = expect_code(0, run);
  EXPECT_THAT(again.out, HasSubstr("resumed from"));
  EXPECT_THAT(again.out, Not(HasSubstr("before the first step")));
  EXPECT_THAT(steps_of(output, "evaluation"), ElementsAre(0, 3));
}

Arguments best_first(const fs::path& output, const std::string& steps) {
  return evaluated(output, steps, "1 steps") + kFirstIsBest +
         Arguments{"--checkpoint.keep", "1", "--checkpoint.every", "never"};
}

TEST(Best, IsRecordedAndItsCheckpointKept) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Ended ended =
      expect_code(0, on_ranks(2, best_first(output, "4")) + Arguments{"--checkpoint.best", "true"});
  EXPECT_THAT(steps_of(output, "best"), ElementsAre(1));
  EXPECT_EQ(summary(output).at("best").dump(), R"({"by":"em","step":1,"value":0.0})");
  EXPECT_THAT(ended.out, HasSubstr("the best evaluation stays em 0.0 at step 1"));
  EXPECT_THAT(checkpoint_names(output), ElementsAre("step-00000001", "step-00000004"));
  const Ended of_best =
      expect_code(0, {"eval", output, "--checkpoint", "best", "--loss-only", "--json"});
  EXPECT_NEAR(nlohmann::json::parse(of_best.out).at("loss").get<double>(),
              events(output, "evaluation").front().at("loss").get<double>(), 1e-6);
}

// What was the best before a stop is the best after it, and its checkpoint stays.
TEST(Best, IsKeptAcrossAResume) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = evaluated(output, "4", "1 steps") + kFirstIsBest +
                        Arguments{"--checkpoint.keep", "2",   "--checkpoint.every", "1 steps",
                                  "--checkpoint.best", "true"};
  expect_code(0, run);
  EXPECT_THAT(checkpoint_names(output),
              ElementsAre("step-00000001", "step-00000003", "step-00000004"));
  fs::remove_all(output / "checkpoints/step-00000004");
  const Ended again = expect_code(0, run);
  EXPECT_THAT(again.out, HasSubstr("resumed from"));
  EXPECT_THAT(again.out, HasSubstr("the best evaluation stays em 0.0 at step 1"));
  EXPECT_THAT(steps_of(output, "best"), ElementsAre(1));
  EXPECT_THAT(checkpoint_names(output),
              ElementsAre("step-00000001", "step-00000003", "step-00000004"));
}

// The start is the best, and lies in another run's folder: it is kept in this one's.
TEST(Best, IsKeptWhereTheRunBeganFromAnother) {
  const TempFolder folder;
  const fs::path other = folder.path() / "other";
  const fs::path output = folder.path() / "run";
  expect_code(0, train(other, "4") + Arguments{"--checkpoint.every", "2 steps", "--checkpoint.keep",
                                               "9", "--data.max_answer_tokens", "1"});
  const std::string start = other / "checkpoints/step-00000002";
  expect_code(0, evaluated(output, "4", "1 steps") + kFirstIsBest +
                     Arguments{"--checkpoint.keep", "1", "--checkpoint.every", "never",
                               "--checkpoint.best", "true", "--resume", start});
  EXPECT_THAT(steps_of(output, "best"), ElementsAre(2));
  EXPECT_THAT(checkpoint_names(output), ElementsAre("step-00000002", "step-00000004"));
  EXPECT_TRUE(exported_weights(output / "checkpoints/step-00000002") == exported_weights(start));
}

// Two entries of one file with other samples are two evaluations, of which the first tells the
// best.
TEST(Best, IsOfTheFirstEntryOfOneFile) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run =
      train(output, "2") +
      Arguments{"--data.eval[0].path", kQuestions, "--data.eval[0].limit", "8",
                "--data.eval[1].path", kQuestions, "--data.eval[1].limit", "4",
                "--eval.every",        "1 steps",  "--checkpoint.every",   "1 steps"};
  expect_code(0, run);
  const auto lines = events(output, "evaluation");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].at("data_sha256"), lines[1].at("data_sha256"));
  EXPECT_NE(lines[0].at("data_set"), lines[1].at("data_set"));
  EXPECT_EQ(summary(output).at("best").at("step"), 2);
  EXPECT_EQ(summary(output).at("best").at("value"), lines[2].at("loss"));
  EXPECT_EQ(summary(output).at("eval_loss"), lines[2].at("loss"));
  // Other samples are another evaluation of the last step, which is made up for.
  const Ended other =
      expect_code(0, train(output, "2") +
                         Arguments{"--data.eval[0].path", kQuestions, "--data.eval[0].limit", "6"});
  EXPECT_THAT(other.out, HasSubstr("evaluating 6 questions after step 2"));
  EXPECT_EQ(summary(output).at("best").at("value"), events(output, "evaluation").back().at("loss"));
}

TEST(Best, IsKnownWithoutItsCheckpoint) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, best_first(output, "3"));
  EXPECT_THAT(checkpoint_names(output), ElementsAre("step-00000003"));
  EXPECT_EQ(summary(output).at("best").at("step"), 1);
  const Ended none = expect_code(66, {"eval", output, "--checkpoint", "best"});
  EXPECT_THAT(none.err, HasSubstr("there is 3. checkpoint.best = true keeps"));
}

// Evaluations 2, 4 and 6: the first is the measure, two are no better.
TEST(EarlyStop, EndsTheRunInTheNormalWayOnAllRanks) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = on_ranks(2, evaluated(output, "10", "2 steps")) + no_improvement("2") +
                        Arguments{"--checkpoint.every", "3 steps", "--checkpoint.keep", "9"};
  const Ended ended = expect_code(0, run);
  EXPECT_THAT(ended.out, HasSubstr("ended early after step 6 of 10: 2 evaluations in a row were no "
                                   "better (eval.patience); the best was loss "));
  EXPECT_THAT(column(output, "loss"), testing::SizeIs(6));
  EXPECT_THAT(checkpoint_names(output), ElementsAre("step-00000003", "step-00000006"));
  EXPECT_THAT(steps_of(output, "early_stop"), ElementsAre(6));
  EXPECT_EQ(summary(output).at("ended_early"), true);
  const auto plan = nlohmann::json::parse(read_file(output / "plan.json"));
  EXPECT_TRUE(plan.contains("measured"));

  // The same command finds nothing left to do, and takes nothing away.
  const std::string log = read_file(output / "log.jsonl");
  EXPECT_THAT(expect_code(0, run).out, HasSubstr("ended early after step 6 of 10"));
  EXPECT_EQ(read_file(output / "log.jsonl"), log);
  EXPECT_EQ(nlohmann::json::parse(read_file(output / "plan.json")), plan);
}

Arguments ended_at_six(const fs::path& output) {
  return evaluated(output, "10", "2 steps") + no_improvement("2") +
         Arguments{"--checkpoint.every", "3 steps", "--checkpoint.keep", "9"};
}

// From the checkpoint of step 3 the run remembers the evaluation of step 2.
TEST(EarlyStop, IsTheSameInARunThatWasResumed) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = ended_at_six(output);
  expect_code(0, run);
  const std::string weights = exported_weights(output);
  fs::remove_all(output / "checkpoints/step-00000006");
  const Ended again = expect_code(0, run);
  EXPECT_THAT(again.out, HasSubstr("step-00000003, step 3 of 10"));
  EXPECT_THAT(again.out, HasSubstr("ended early after step 6 of 10"));
  EXPECT_THAT(steps_of(output, "evaluation"), ElementsAre(2, 4, 6));
  EXPECT_TRUE(weights == exported_weights(output));
}

// Of lines of versions that did not say what was read of a file, the entry's samples tell.
TEST(EarlyStop, IsTheSameInARunThatAnEarlierVersionBegan) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = ended_at_six(output);
  expect_code(0, run);
  const auto best = summary(output).at("best");
  std::string earlier_log;
  std::ifstream log(output / "log.jsonl");
  for (std::string line; std::getline(log, line);) {
    auto record = nlohmann::ordered_json::parse(line);
    if (record.at("step") > 3) {
      break;
    }
    record.erase("data_index");
    record.erase("data_set");
    earlier_log += record.dump() + "\n";
  }
  folder.write("run/log.jsonl", earlier_log);
  fs::remove_all(output / "checkpoints/step-00000006");
  const Ended again = expect_code(0, run);
  EXPECT_THAT(again.out, HasSubstr("ended early after step 6 of 10"));
  EXPECT_THAT(steps_of(output, "evaluation"), ElementsAre(2, 4, 6));
  EXPECT_EQ(summary(output).at("best"), best);
}

// A run that has had all the patience it is given now ends where it is, and says so.
TEST(EarlyStop, IsRecordedWhereThePatienceIsLessThanBefore) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run =
      evaluated(output, "900", "1 steps") + Arguments{"--checkpoint.every", "1 steps"};
  EXPECT_EQ(run_until({.text = "step 4/"}, run + no_improvement("1000000")).code, 75);
  EXPECT_THAT(steps_of(output, "early_stop"), testing::IsEmpty());
  const Arguments less = run + no_improvement("2");
  EXPECT_THAT(expect_code(0, less).out, HasSubstr("ended early after step "));
  EXPECT_THAT(steps_of(output, "early_stop"), testing::SizeIs(1));
  EXPECT_EQ(summary(output).at("ended_early"), true);
  EXPECT_EQ(summary(output).at("ended"), "finished");
  EXPECT_THAT(expect_code(0, less).out, HasSubstr("ended early after step "));
  EXPECT_THAT(steps_of(output, "early_stop"), testing::SizeIs(1));
}

TEST(EarlyStop, GivesWayToMorePatience) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = evaluated(output, "4", "1 steps");
  expect_code(0, run + no_improvement("1"));
  EXPECT_THAT(column(output, "loss"), testing::SizeIs(2));
  const Ended more = expect_code(0, run + no_improvement("9"));
  EXPECT_THAT(more.out, HasSubstr("resumed from"));
  EXPECT_THAT(column(output, "loss"), testing::SizeIs(4));
  EXPECT_EQ(summary(output).at("ended_early"), false);
}

}  // namespace
}  // namespace sherd::test
