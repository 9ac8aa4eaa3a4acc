#include "launch/stop_request.h"

#include <csignal>

#include "gtest/gtest.h"
#include "launch/signals.h"
#include "tests/launch/child.h"

namespace sherd::launch::testing {
namespace {

TEST(StopRequest, IsNotThereAtFirst) {
  EXPECT_FALSE(StopRequest::requested());
}

class StopSignal : public ::testing::TestWithParam<int> {};

TEST_P(StopSignal, AsksOnce) {
  Child rank({actor(), "act", "0=stop"});
  rank.ranks(1);
  rank.signal(GetParam());
  EXPECT_EQ(rank.finish().status.shell_code(), 75);
}

TEST_P(StopSignal, EndsTheProcessTheSecondTime) {
  Child rank({actor(), "act", "0=stubborn"});
  rank.ranks(1);
  rank.signal(GetParam());
  EXPECT_EQ(rank.line(), "asked to stop");
  rank.signal(GetParam());
  EXPECT_EQ(rank.finish().status.signal, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Each, StopSignal, ::testing::ValuesIn(kStopSignals));

// The launcher of this rank is the test itself. What it passes on may reach it more than once.
TEST(StopRequest, ARepetitionOfTheLaunchersIsNoSecondOne) {
  Child rank({actor(), "act", "0=stubborn:1"});
  rank.ranks(1);
  for (int i = 0; i < 3; ++i) {
    rank.signal(SIGTERM);
    EXPECT_EQ(rank.line(), "asked to stop");
  }
  rank.signal(SIGKILL);
  EXPECT_EQ(rank.finish().status.signal, SIGKILL);
}

TEST(StopRequest, ASecondOneOfTheLauncherCounts) {
  Child rank({actor(), "act", "0=stubborn:1"});
  rank.ranks(1);
  rank.signal(SIGTERM);
  EXPECT_EQ(rank.line(), "asked to stop");
  ::usleep(1'200'000);
  rank.signal(SIGTERM);
  EXPECT_EQ(rank.finish(seconds{5}).status.signal, SIGTERM);
}

}  // namespace
}  // namespace sherd::launch::testing
