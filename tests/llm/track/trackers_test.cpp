// Which figures trackers get, under which names, and which trackers there are.

#include "llm/track/trackers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/llm/track/tracked_runs.h"
#include "tests/support/expect_error.h"

namespace llm::track {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(Points, OfAStepHaveTheNamesOfOthers) {
  const StepRecord record{.step = 3,
                          .loss = 1.5,
                          .grad_norm = 0.5,
                          .lr = 1e-5,
                          .tokens = 100,
                          .supervised_tokens = 10,
                          .samples = 4,
                          .step_seconds = 2,
                          .unix_seconds = 7,
                          .peak_rank_bytes = 1024,
                          .data_wait_seconds = 0.25,
                          .epochs = 0.75};
  const Point point = point_of(record);
  EXPECT_EQ(point.step, 3);
  EXPECT_EQ(point.unix_seconds, 7);
  EXPECT_THAT(point.metrics,
              ElementsAre(Pair("train/loss", 1.5), Pair("train/grad_norm", 0.5),
                          Pair("train/learning_rate", 1e-5), Pair("train/epoch", 0.75),
                          Pair("perf/tokens_per_second", 50), Pair("perf/samples_per_second", 2),
                          Pair("perf/step_seconds", 2), Pair("perf/data_wait_seconds", 0.25),
                          Pair("perf/peak_memory_bytes", 1024)));
}

TEST(Points, OfAStepHaveTheUtilizationWhereItIsKnown) {
  EXPECT_THAT(point_of(StepRecord{.step = 1, .mfu = 0.5}).metrics,
              testing::Contains(Pair("perf/mfu", 0.5)));
}

TEST(Points, OfAStepThatLearnedNothingHaveNoLoss) {
  EXPECT_EQ(point_of(StepRecord{.step = 1}).metrics.front().first, "train/learning_rate");
}

TEST(Points, OfEvaluationsNameTheFileWhereThereAreSeveral) {
  EvaluationRecord record{.step = 3, .loss = 2, .seconds = 5};
  EXPECT_THAT(point_of(record).metrics, ElementsAre(Pair("eval/loss", 2), Pair("eval/seconds", 5)));
  record.generated = true;
  record.em = 30;
  record.f1 = 46;
  record.data = "dev";
  EXPECT_THAT(point_of(record).metrics,
              ElementsAre(Pair("eval/dev/loss", 2), Pair("eval/dev/em", 30),
                          Pair("eval/dev/f1", 46), Pair("eval/dev/seconds", 5)));
}

TEST(Points, OfEvaluatedFilesHaveNamesOfTheirOwnThatTrackersTake) {
  EXPECT_THAT(evaluation_names({"data/dev.json"}), ElementsAre(""));
  EXPECT_THAT(evaluation_names({"a/dev.json", "b/dev.jsonl", "dev", "Fragen (größer).json"}),
              ElementsAre("dev", "dev-1", "dev-2", "Fragen__gr____er_"));
  EXPECT_THAT(evaluation_names({"a/dev-1.json", "a/dev.json", "b/dev.json"}),
              ElementsAre("dev-1", "dev", "dev-2"));
}

TEST(Trackers, AreThoseOfTheSinks) {
  const sherd::test::TempFolder folder;
  config::RunConfig config = run_in(folder).config;
  EXPECT_THAT(Trackers(config, environment_of({})).take_news(), IsEmpty());
  config.log.sink.push_back({.kind = config::SinkKind::TensorBoard});
  config.log.sink.push_back({.kind = config::SinkKind::Wandb});
  const std::string output = config.train.output;
  {
    Trackers trackers(config, environment_of({}));
    EXPECT_THAT(trackers.take_news(),
                ElementsAre("tracker tensorboard: tensorboard --logdir " + output + "/tensorboard",
                            "tracker wandb: offline, in " + output + "/wandb"));
    EXPECT_THAT(trackers.take_news(), IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(output + "/tensorboard"));  // nothing was measured yet
    trackers.begin(0);
    trackers.log({1, 1e9, {{"train/loss", 1.5}}});
    trackers.end(End::Finished);
    EXPECT_THAT(trackers.take_news(),
                ElementsAre(testing::StartsWith("tracker wandb: to upload the run: wandb sync ")));
  }
  EXPECT_TRUE(std::filesystem::exists(output + "/tensorboard"));
  EXPECT_THAT(Trackers(config, environment_of({{"WANDB_MODE", "disabled"}})).take_news(),
              testing::Contains("tracker wandb: turned off by WANDB_MODE=disabled"));
  config.log.sink.push_back({.kind = config::SinkKind::Mlflow});
  sherd::test::expect_error([&] { Trackers(config, environment_of({})); }, sherd::ExitCode::Usage,
                            {"needs MLFLOW_TRACKING_URI"});
}

TEST(TrackedRun, IsCalledAsItsFolder) {
  config::RunConfig config;
  config.train.output = "runs/first/";
  EXPECT_EQ(tracked_run(config, environment_of({})).name, "first");
  config.log.name = "mine";
  EXPECT_EQ(tracked_run(config, environment_of({})).name, "mine");
}

}  // namespace
}  // namespace llm::track
