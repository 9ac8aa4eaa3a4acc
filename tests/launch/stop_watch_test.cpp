#include "launch/stop_watch.h"

#include <csignal>

#include "gtest/gtest.h"
#include "tests/launch/child.h"

namespace sherd::launch::testing {
namespace {

TEST(StopWatch, EndsARankThatWaitsInVain) {
  Child rank({actor(), "act", "0=wait-in-vain:1"});
  rank.ranks(1);
  rank.signal(SIGTERM);
  const Outcome outcome = rank.finish(seconds{5});
  EXPECT_EQ(outcome.status.shell_code(), 75);
  EXPECT_EQ(outcome.err,
            "sherd: rank 0 was asked to stop, and has waited 1 s for the others in a barrier; "
            "stopping (exit 75): the same command goes on from the last checkpoint\n");
}

TEST(StopWatch, LeavesARankAloneThatWasNotAsked) {
  Child rank({actor(), "act", "0=wait-in-vain:1"});
  rank.ranks(1);
  ::usleep(2'000'000);
  rank.signal(SIGKILL);
  EXPECT_EQ(rank.finish().status.signal, SIGKILL);
}

TEST(StopWatch, LeavesARankAloneThatWaitsForNobody) {
  Child rank({actor(), "act", "0=wait-in-vain:0"});
  rank.ranks(1);
  rank.signal(SIGTERM);
  ::usleep(1'500'000);
  rank.signal(SIGKILL);
  EXPECT_EQ(rank.finish().status.signal, SIGKILL);
}

}  // namespace
}  // namespace sherd::launch::testing
