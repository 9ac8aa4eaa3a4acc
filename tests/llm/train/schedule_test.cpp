// The learning rate of each step.

#include "llm/train/schedule.h"

#include <cmath>

#include <gtest/gtest.h>

namespace llm::train {
namespace {

using config::Schedule;

config::OptimSection optim(Schedule schedule, std::int64_t warmup_steps, double min_lr_ratio) {
  config::OptimSection section;
  section.lr = 8.0;
  section.schedule = schedule;
  section.warmup_steps = warmup_steps;
  section.min_lr_ratio = min_lr_ratio;
  return section;
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

}  // namespace
}  // namespace llm::train
