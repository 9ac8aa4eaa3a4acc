#include "llm/train/interval.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::train {
namespace {

using config::Every;
using std::chrono::minutes;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kStepsPerEpoch = 3;
constexpr ActionInterval::Clock::time_point kStart{};

std::vector<std::int64_t> steps_due(const Every& every) {
  const ActionInterval cadence(every, kStepsPerEpoch, kStart);
  std::vector<std::int64_t> due;
  for (std::int64_t step = 1; step <= 7; ++step) {
    if (cadence.is_due(step, false)) {
      due.push_back(step);
    }
  }
  return due;
}

TEST(Cadence, CountsStepsAndEpochs) {
  EXPECT_THAT(steps_due(Every{}), IsEmpty());
  EXPECT_THAT(steps_due(Every::steps(2)), ElementsAre(2, 4, 6));
  EXPECT_THAT(steps_due(Every::epoch()), ElementsAre(3, 6));
  EXPECT_THAT(steps_due(Every::time(minutes(1))), IsEmpty());
}

TEST(Cadence, MeasuresTimeFromTheLastTime) {
  ActionInterval cadence(Every::time(minutes(10)), kStepsPerEpoch, kStart);
  EXPECT_FALSE(cadence.time_is_up(kStart + minutes(9)));
  EXPECT_TRUE(cadence.time_is_up(kStart + minutes(10)));
  EXPECT_TRUE(cadence.is_due(1, true));
  cadence.done(kStart + minutes(13));
  EXPECT_FALSE(cadence.time_is_up(kStart + minutes(22)));
  EXPECT_TRUE(cadence.time_is_up(kStart + minutes(23)));
}

// A rank whose own clock would say so follows the first one's.
TEST(Cadence, AsksTheClockOnlyForTime) {
  EXPECT_FALSE(
      ActionInterval(Every::steps(2), kStepsPerEpoch, kStart).time_is_up(kStart + minutes(99)));
  EXPECT_FALSE(ActionInterval(Every::steps(2), kStepsPerEpoch, kStart).is_due(1, true));
  EXPECT_FALSE(ActionInterval(Every{}, kStepsPerEpoch, kStart).is_due(3, true));
}

}  // namespace
}  // namespace llm::train
