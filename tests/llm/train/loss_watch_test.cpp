// Training that leads nowhere is said, once.

#include "llm/train/loss_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::train {
namespace {

using testing::HasSubstr;

TEST(LossWatch, SaysOnceThatTheGradientIsZero) {
  LossWatch watch;
  EXPECT_EQ(watch.look(1, 6.0, 1.5), "");
  EXPECT_THAT(watch.look(2, 6.1, 0), HasSubstr("step 2: the gradient norm is 0"));
  EXPECT_EQ(watch.look(3, 6.2, 0), "");
}

TEST(LossWatch, SaysOnceThatTheLossStandsStill) {
  LossWatch watch;
  EXPECT_EQ(watch.look(1, 6.0, 1), "");
  for (int step = 2; step <= 10; ++step) {
    EXPECT_EQ(watch.look(step, 6.0, 1), "") << step;
  }
  EXPECT_THAT(watch.look(11, 6.0, 1), HasSubstr("the loss has not changed for 10 steps"));
  EXPECT_EQ(watch.look(12, 6.0, 1), "");
}

TEST(LossWatch, IsSilentWhileTheLossMoves) {
  LossWatch watch;
  for (int step = 1; step <= 40; ++step) {
    EXPECT_EQ(watch.look(step, 6.0 + step % 2 * 1e-5, 0.1), "") << step;
  }
}

}  // namespace
}  // namespace llm::train
