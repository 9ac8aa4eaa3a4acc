#include "llm/train/step_profile.h"

#include <chrono>
#include <memory>
#include <thread>

#include <ATen/record_function.h>
#include <gtest/gtest.h>

namespace llm::train {
namespace {

void work() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(StepProfile, CountsNestedWorkOnce) {
  const StepProfile profile(StepProfile::Detail::Phases);
  {
    RECORD_USER_SCOPE("forward");
    work();
    {
      RECORD_USER_SCOPE("all-gather");
      work();
    }
  }
  const auto seconds = profile.phase_seconds();
  EXPECT_GE(seconds.at("forward"), 0.02);
  EXPECT_LT(seconds.at("forward"), 0.04);
  EXPECT_GE(seconds.at("gather"), 0.02);
}

// As a back end's sends and receives do, which begin in one scope and end in another.
TEST(StepProfile, IsNotConfusedByWhatDoesNotNest) {
  const StepProfile profile(StepProfile::Detail::Phases);
  {
    RECORD_USER_SCOPE("forward");
    auto send = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    send->_setAsync();
    send->before("gloo:send");
    {
      RECORD_USER_SCOPE("all-gather");
      send->end();
      work();
    }
  }
  const auto seconds = profile.phase_seconds();
  EXPECT_GE(seconds.at("gather"), 0.02);
  EXPECT_LT(seconds.at("forward"), 0.02);
}

}  // namespace
}  // namespace llm::train
