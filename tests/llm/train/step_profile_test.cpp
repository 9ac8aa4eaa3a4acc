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

using Clock = std::chrono::steady_clock;

void work() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// However long a busy machine takes for it: no second is in two phases.
void expect_counted_once(const StepProfile& profile, Clock::duration passed) {
  const auto seconds = profile.phase_seconds();
  EXPECT_GE(seconds.at("gather"), 0.02);
  EXPECT_LE(seconds.at("forward") + seconds.at("gather"),
            std::chrono::duration<double>(passed).count());
}

TEST(StepProfile, CountsNestedWorkOnce) {
  const auto start = Clock::now();
  const StepProfile profile(StepProfile::Detail::Phases);
  {
    RECORD_USER_SCOPE("forward");
    work();
    {
      RECORD_USER_SCOPE("all-gather");
      work();
    }
  }
  EXPECT_GE(profile.phase_seconds().at("forward"), 0.02);
  expect_counted_once(profile, Clock::now() - start);
}

// As a back end's sends and receives do, which begin in one scope and end in another.
TEST(StepProfile, IsNotConfusedByWhatDoesNotNest) {
  const auto start = Clock::now();
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
  expect_counted_once(profile, Clock::now() - start);
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
