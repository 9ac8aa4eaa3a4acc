// Runs read back from their folders, whole, unfinished and damaged.

#include "llm/runs/run_records.h"

#include <cmath>
#include <fstream>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "llm/runs/run_summary.h"
#include "sherd/error.h"
#include "tests/llm/runs/written_run.h"
#include "tests/support/temp_folder.h"

namespace llm::runs {
namespace {

using sherd::ExitCode;
using sherd::test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;

class Records : public testing::Test {
 protected:
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  void expect_fault(ExitCode code, const std::filesystem::path& run, const std::string& why) {
    try {
      static_cast<void>(read_run(run));
      FAIL() << why;
    } catch (const sherd::Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  }

 private:
  TempFolder folder_;
};

TEST_F(Records, AreStepsEvaluationsAndBeginnings) {
  const RunRecords run = read_run(WrittenRun{.ranks = 2}.write(folder()));
  EXPECT_EQ(run.name, "first");
  EXPECT_EQ(run.config.optim.lr, 1e-3);
  EXPECT_EQ(run.steps.size(), 4);
  EXPECT_EQ(run.steps[3].loss, 1);
  EXPECT_EQ(run.steps[3].samples, 8);
  EXPECT_EQ(run.evaluations.size(), 2);
  EXPECT_EQ(run.evaluations[1].em, 20);
  EXPECT_EQ(run.ranks, 2);
  EXPECT_EQ(run.checkpoint_seconds, 0.25);
  EXPECT_FALSE(run.memory);
}

// Also where the log is longer than what memory should hold.
TEST_F(Records, OfALongLogAreReadLineByLine) {
  const auto path = WrittenRun().write(folder());
  const RunSummary expected = summary_of(read_run(path));
  std::filesystem::resize_file(path / "log.jsonl", (std::uint64_t{1} << 30) + 1);  // half a line
  EXPECT_EQ(to_json(summary_of(path)), to_json(expected));
  EXPECT_EQ(read_run(path).steps.size(), 4);
}

TEST_F(Records, OfARunThatGoesOnEndWithItsLastWholeLine) {
  const RunRecords run = read_run(WrittenRun().write(folder(), R"({"step":5,"loss":0.)"));
  EXPECT_EQ(run.steps.size(), 4);
}

// Of this version, and of earlier ones.
TEST_F(Records, OfStepsThatLearnedNothingHaveNoLoss) {
  for (const char* loss : {"null", "0.0"}) {
    const RunRecords run =
        read_run(WrittenRun().write(folder(), std::string(R"({"step":5,"loss":)") + loss +
                                                  R"(,"supervised_tokens":0})" + "\n"));
    ASSERT_EQ(run.steps.size(), 5);
    EXPECT_TRUE(std::isnan(run.steps[4].loss)) << loss;
    const RunSummary summary = summary_of(run);
    EXPECT_EQ(summary.last_loss, 1) << loss;
    EXPECT_EQ(summary.train_loss, 2.5) << loss;
  }
}

TEST_F(Records, OfARunThatLearnedNothingSaySo) {
  RunRecords run = read_run(WrittenRun().write(folder()));
  for (track::StepRecord& step : run.steps) {
    step.loss = NAN;
    step.supervised_tokens = 0;
  }
  const RunSummary summary = summary_of(run);
  EXPECT_THAT(to_line(summary), testing::StartsWith("no supervised token: nothing learned, "));
  EXPECT_TRUE(nlohmann::json::parse(to_json(summary)).at("last_loss").is_null());
}

TEST_F(Records, OfAPipeAreNone) {
  const std::filesystem::path pipe = folder() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(read_evaluations(pipe).empty());  // and nobody waits for its writer
  EXPECT_FALSE(tells_early_stop(pipe));
}

TEST_F(Records, TellAnEarlyStopUntilAStepFollows) {
  const auto path = folder() / "log.jsonl";
  const std::string stop = R"({"event":"early_stop","step":1})";
  std::ofstream(path) << WrittenRun().step(1) << "\n";
  EXPECT_FALSE(tells_early_stop(path));
  std::ofstream(path, std::ios::app) << stop << "\n" << WrittenRun::evaluation(1, 2, 3) << "\n";
  EXPECT_TRUE(tells_early_stop(path));
  std::ofstream(path, std::ios::app) << WrittenRun().step(2) << "\n";
  EXPECT_FALSE(tells_early_stop(path));
}

TEST_F(Records, TellHowTheRunEnded) {
  const std::string failed = R"({"event":"end","step":4,"how":"failed","why":"no disk"})";
  EXPECT_EQ(read_run(WrittenRun().write(folder())).ended, std::nullopt);
  EXPECT_EQ(read_run(WrittenRun().write(folder(), failed + "\n")).ended, track::End::Failed);
  const auto on = WrittenRun().write(folder(), failed + "\n" + WrittenRun().step(5) + "\n");
  EXPECT_EQ(read_run(on).ended, std::nullopt);  // it went on since
  const RunSummary summary = summary_of(read_run(WrittenRun().write(folder(), failed + "\n")));
  EXPECT_EQ(nlohmann::json::parse(to_json(summary)).at("ended"), "failed");
  EXPECT_TRUE(to_line(summary).starts_with("failed: train_loss 2.5000, 4 steps "));
  std::ofstream(folder() / "summary.json") << to_json(summary);
  EXPECT_EQ(end_in_summary(folder() / "summary.json"), "failed");
  EXPECT_EQ(end_in_summary(folder() / "none.json"), "");
}

// Null of a measure is a number that was not finite; what is not there was not taken.
TEST_F(Records, KnowWhatIsAbsentFromWhatIsNotFinite) {
  const auto run = read_run(WrittenRun().write(
      folder(), R"({"event":"evaluation","step":4,"loss":1,"f1":null,"data_index":1,)"
                R"("data_set":"ab"})"
                "\n"));
  const Evaluation& last = run.evaluations.back();
  EXPECT_FALSE(last.em);
  ASSERT_TRUE(last.f1);
  EXPECT_TRUE(std::isnan(*last.f1));
  EXPECT_EQ(last.set, (EvaluationSet{1, "ab"}));
}

// Of `samples` of dev.json, as versions wrote it that did not name the set.
std::string earlier_line(int step, int samples, const std::string& more = "") {
  return fmt::format(R"({{"event":"evaluation","step":{},"data_sha256":"e1","samples":{},)"
                     R"("generated":false,"data":"dev.json","loss":1{}}})",
                     step, samples, more) +
         "\n";
}

// By the order of a step's lines, and by later lines of the same samples.
TEST_F(Records, OfEarlierVersionsAreOfTheSetsThatLaterLinesName) {
  const std::string begin = R"({"event":"begin","step":2})"
                            "\n";
  const auto path = WrittenRun().write(folder());
  std::ofstream(path / "log.jsonl")
      << earlier_line(1, 8) << earlier_line(1, 4) << earlier_line(2, 8) << begin
      << earlier_line(2, 6) << earlier_line(2, 4)
      << earlier_line(3, 8, R"(,"data_index":0,"data_set":"eight")");
  const EvaluationSet eight = {0, "eight"};
  const EvaluationSet six = {0, ""};  // which nothing names
  const EvaluationSet other = {1, ""};
  const auto sets = [](const std::vector<Evaluation>& evaluations) {
    std::vector<EvaluationSet> found;
    for (const Evaluation& one : evaluations) {
      found.push_back(one.set);
    }
    return found;
  };
  EXPECT_THAT(sets(read_run(path).evaluations),
              ElementsAre(eight, other, eight, six, other, eight));
  // Where the run goes on with the version that names them, before it has evaluated.
  auto earlier = read_evaluations(path / "log.jsonl");
  name_sets(earlier, {.samples = 6, .data_sha256 = "e1", .set = {0, "six"}});
  name_sets(earlier, {.samples = 4, .data_sha256 = "e2", .set = {1, "of another file"}});
  EXPECT_THAT(sets(earlier), ElementsAre(six, other, six, EvaluationSet{0, "six"}, other, eight));
}

TEST_F(Records, AFolderGivenWithASlashHasItsName) {
  EXPECT_EQ(read_run(WrittenRun().write(folder()).string() + "/").name, "first");
}

TEST_F(Records, ThatAreDamagedAreNamedByLine) {
  const auto run = WrittenRun().write(folder(), "no JSON\n");
  expect_fault(ExitCode::BadData, run, "log.jsonl:9: not a record of a run");
  const auto other = WrittenRun{.name = "other"}.write(folder(), "[1]\n");
  expect_fault(ExitCode::BadData, other, "log.jsonl:9: not a record of a run");
}

TEST_F(Records, AFolderThatIsNoRunIsNamed) {
  expect_fault(ExitCode::InputMissing, folder(),
               "is not a run: it contains no config.toml. Give the output folder of a run");
  expect_fault(ExitCode::InputMissing, folder() / "nowhere",
               "is not a run: it contains no config.toml");
  const auto run = WrittenRun().write(folder());
  std::filesystem::remove(run / "log.jsonl");
  expect_fault(ExitCode::InputMissing, run, "log.jsonl is not there");
  std::filesystem::create_symlink("/dev/full", run / "log.jsonl");
  expect_fault(ExitCode::InputMissing, run, "log.jsonl is not a file, and cannot be read back");
  std::ofstream(run / "config.toml") << "[optim]\nlr = \"no number\"\n";
  expect_fault(ExitCode::BadData, run, "config.toml: ");
}

TEST_F(Records, OfEarlierVersionsKnowTheRanksFromThePlan) {
  const auto path = WrittenRun().write(folder());
  std::ofstream(path / "log.jsonl") << WrittenRun().step(1) << "\n";
  std::ofstream(path / "plan.json") << R"({"ranks": 4, "hosts": 2, "constant_bytes": 100,
      "measured": {"rank_peak_bytes": [10, 30]}})";
  const RunRecords run = read_run(path);
  EXPECT_EQ(run.ranks, 4);
  EXPECT_EQ(run.hosts, 2);
  ASSERT_TRUE(run.memory);
  const RunSummary summary = summary_of(run);
  EXPECT_EQ(summary.mean_peak_bytes, 120);
  EXPECT_EQ(summary.max_peak_bytes, 130);
  EXPECT_EQ(summary.constant_bytes, 100);
}

TEST_F(Records, MakeASummary) {
  const RunSummary summary = summary_of(read_run(WrittenRun().write(folder())));
  EXPECT_EQ(summary.steps, 4);
  EXPECT_EQ(summary.epochs, 2);
  EXPECT_EQ(summary.train_loss, 2.5);
  EXPECT_EQ(summary.last_loss, 1);
  EXPECT_THAT(summary.train_loss_by_epoch, ElementsAre(3.5, 1.5));
  EXPECT_THAT(summary.eval_loss_by_epoch, ElementsAre(3.5, 2.5));
  EXPECT_EQ(summary.eval_loss, 2.5);
  EXPECT_EQ(summary.em, 20);
  EXPECT_EQ(summary.f1, 25);
  EXPECT_EQ(summary.train_seconds, 2);
  EXPECT_EQ(summary.runtime_seconds, 2 + 2 + 0.25);
  EXPECT_EQ(summary.train_samples_per_second, 16);
  EXPECT_EQ(summary.train_tokens_per_second, 200);
  EXPECT_EQ(summary.train_steps_per_second, 2);
  EXPECT_EQ(summary.eval_samples_per_second, 10);
  EXPECT_EQ(summary.max_peak_bytes, 4'000'000);  // the steps' own, where there is no plan
  EXPECT_EQ(to_line(summary),
            "train_loss 2.5000, 16 samples/s, 2 steps/s, eval_loss 2.5000, EM 20.0, F1 25.0, "
            "memory per rank 4 MiB");
  EXPECT_EQ(nlohmann::json::parse(to_json(summary)).at("train_loss_by_epoch").size(), 2);
}

// By time: a step of half a second, and one of a second and a half.
TEST_F(Records, TellTheMeanUtilizationWhereStepsKnowIt) {
  const RunSummary unknown = summary_of(read_run(WrittenRun().write(folder())));
  EXPECT_FALSE(unknown.mfu);
  EXPECT_TRUE(nlohmann::json::parse(to_json(unknown)).at("mfu").is_null());
  const auto path = WrittenRun().write(
      folder(), WrittenRun{.more_of_a_step = R"(,"mfu":0.8)"}.step(5) + "\n" +
                    WrittenRun{.step_seconds = 1.5, .more_of_a_step = R"(,"mfu":0.4)"}.step(6) +
                    "\n");
  const RunSummary summary = summary_of(read_run(path));
  ASSERT_TRUE(summary.mfu);
  EXPECT_DOUBLE_EQ(*summary.mfu, 0.5);
  EXPECT_THAT(to_line(summary), HasSubstr(" steps/s, mfu 50.0%, "));
  EXPECT_EQ(nlohmann::json::parse(to_json(summary)).at("mfu"), *summary.mfu);
}

TEST_F(Records, AddUpThePhasesOfSteps) {
  const WrittenRun timed{.more_of_a_step = R"(,"phase_seconds":{"forward":0.1,"wait":null})"};
  const RunSummary summary = summary_of(read_run(timed.write(folder())));
  ASSERT_EQ(summary.phase_seconds.size(), 1);
  EXPECT_DOUBLE_EQ(summary.phase_seconds.at("forward"), 0.4);
  EXPECT_TRUE(nlohmann::json::parse(to_json(summary)).at("phase_seconds").contains("forward"));
}

TEST_F(Records, HaveEachLossUnderItsEpoch) {
  WrittenRun written;
  const auto path = written.write(folder());
  std::ofstream(path / "log.jsonl") << written.step(1) << "\n"
                                    << written.step(2) << "\n"
                                    << written.step(3) << "\n"
                                    << written.step(4) << "\n"
                                    << WrittenRun::evaluation(4, 2.5, 20) << "\n";
  const RunSummary summary = summary_of(read_run(path));
  EXPECT_THAT(summary.eval_loss_by_epoch, ElementsAre(std::nullopt, 2.5));
  EXPECT_TRUE(nlohmann::json::parse(to_json(summary)).at("eval_loss_by_epoch").at(0).is_null());
}

TEST_F(Records, TakeNoLossFromAStepThatHadNone) {
  const auto path = WrittenRun().write(folder(), R"({"step":5,"loss":0,"supervised_tokens":0,)"
                                                 R"("epoch":2.5})"
                                                 "\n");
  EXPECT_EQ(summary_of(read_run(path)).train_loss, 2.5);
}

TEST_F(Records, WithoutAStepMakeASummaryOfZeros) {
  const auto path = WrittenRun().write(folder());
  std::ofstream(path / "log.jsonl") << "";
  const RunSummary summary = summary_of(read_run(path));
  EXPECT_EQ(summary.steps, 0);
  EXPECT_EQ(summary.train_samples_per_second, 0);
  EXPECT_TRUE(nlohmann::json::parse(to_json(summary)).at("eval_loss").is_null());
}

}  // namespace
}  // namespace llm::runs
