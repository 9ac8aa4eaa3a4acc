// Which share of their peak ranks compute at.

#include "llm/train/flops_utilization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::train {
namespace {

const StepOutcome kStep{.tokens = 100, .supervised_tokens = 10, .attended_pairs = 1000};
const FlopsUtilization kKnown{
    {.a_token = 4, .a_supervised_token = 10, .a_pair = 0.5}, plan::Peak{2500, "as a test says"}, 2};

TEST(FlopsUtilization, IsOfAllRanksAndOfTheWholeStep) {
  EXPECT_DOUBLE_EQ(kKnown.of(kStep, 1).value(), 1000.0 / (2500 * 2));
  EXPECT_DOUBLE_EQ(kKnown.of(kStep, 0.5).value(), 1000.0 / (2500 * 2 * 0.5));
  EXPECT_EQ(kKnown.line(), "mfu: the share of 2.5e-06 GFLOP/s per rank, as a test says");
}

TEST(FlopsUtilization, IsNoneWhereThePeakIsNotKnownOrNothingWasComputed) {
  EXPECT_FALSE(FlopsUtilization{kKnown.model}.of(kStep, 1));
  EXPECT_EQ(FlopsUtilization{kKnown.model}.line(), "");
  EXPECT_FALSE(kKnown.of({.tokens = 100}, 1));
  EXPECT_FALSE(kKnown.of(kStep, 0));
}

}  // namespace
}  // namespace llm::train
