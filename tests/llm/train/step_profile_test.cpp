#include "llm/train/step_profile.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/train/step_trace.h"
#include "tests/support/temp_folder.h"

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

TEST(StepTrace, ThatCannotBeRecordedEndsNoRun) {
  const sherd::test::TempFolder folder;
  StepTrace trace({.first = 2, .last = 3}, folder.path(), 0, c10::Device(c10::kCUDA, 0), {});
  for (const std::int64_t step : {1, 2, 3, 4}) {  // the first prepares the profiler
    trace.begin(step);
    const std::string line = trace.end(step);
    if (step == 3) {
      EXPECT_THAT(line, testing::StartsWith("no trace of steps 2-3: "));
    } else {
      EXPECT_EQ(line, "") << step;
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace llm::train
