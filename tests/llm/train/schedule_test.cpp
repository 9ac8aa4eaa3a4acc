// The learning rate of each step.

#include "llm/train/schedule.h"

#include <cmath>

#include <gtest/gtest.h>

namespace llm::train {
namespace {

using config::Schedule;

config::ScheduleSection optim(Schedule kind, std::int64_t warmup_steps, double min_lr_ratio) {
  return {kind, {warmup_steps, 0}, min_lr_ratio};
}

// Of a peak of 8.
double learning_rate(const config::ScheduleSection& schedule, std::int64_t step,
                     std::int64_t total_steps) {
  return train::learning_rate(8.0, schedule, step, total_steps);
}

TEST(LearningRate, RisesLinearlyInTheWarmUp) {
  for (const Schedule schedule : {Schedule::Linear, Schedule::Cosine, Schedule::Constant}) {
    const auto section = optim(schedule, 4, 0);
    for (const int step : {1, 2, 3, 4}) {
      EXPECT_DOUBLE_EQ(learning_rate(section, step, 12), 2.0 * step);
    }
    EXPECT_DOUBLE_EQ(learning_rate(section, 5, 12), 8.0);
  }
}

TEST(LearningRate, FallsLinearly) {
  const auto section = optim(Schedule::Linear, 0, 0);
  EXPECT_DOUBLE_EQ(learning_rate(section, 1, 8), 8.0);
  EXPECT_DOUBLE_EQ(learning_rate(section, 5, 8), 4.0);
  EXPECT_DOUBLE_EQ(learning_rate(section, 8, 8), 1.0);  // the last step still learns
}

TEST(LearningRate, FallsAsHalfACosine) {
  const auto section = optim(Schedule::Cosine, 2, 0);
  EXPECT_DOUBLE_EQ(learning_rate(section, 3, 10), 8.0);
  EXPECT_NEAR(learning_rate(section, 5, 10), 4.0 * (1.0 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(learning_rate(section, 7, 10), 4.0, 1e-12);
}

TEST(LearningRate, EndsAtItsLowestShare) {
  EXPECT_DOUBLE_EQ(learning_rate(optim(Schedule::Linear, 0, 0.5), 5, 8), 6.0);
  EXPECT_DOUBLE_EQ(learning_rate(optim(Schedule::Linear, 0, 0.25), 100, 8), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(optim(Schedule::Cosine, 0, 0.25), 100, 8), 2.0);
}

TEST(LearningRate, StaysWhereItIsConstant) {
  EXPECT_DOUBLE_EQ(learning_rate(optim(Schedule::Constant, 0, 0), 1, 8), 8.0);
  EXPECT_DOUBLE_EQ(learning_rate(optim(Schedule::Constant, 0, 0), 8, 8), 8.0);
}

TEST(Warmup, IsAShareOfTheRunOrSteps) {
  EXPECT_EQ(config::warmup_steps({7, 0}, 100), 7);
  EXPECT_EQ(config::warmup_steps({std::nullopt, 0.03}, 1000), 30);
  EXPECT_EQ(config::warmup_steps({std::nullopt, 0.03}, 10), 0);
  EXPECT_EQ(config::warmup_steps({std::nullopt, 0.5}, 3), 2);
  EXPECT_EQ(config::warmup_steps({std::nullopt, 1}, 10), 10);
  EXPECT_DOUBLE_EQ(learning_rate({Schedule::Constant, {std::nullopt, 0.5}, 0}, 1, 8), 2.0);
}

}  // namespace
}  // namespace llm::train
