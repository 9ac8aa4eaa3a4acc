#include "launch/stop_watch.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launch/child.h"

namespace sherd::launch::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(StopWatch, EndsARankAtTheDeadlineAndSaysWhatIsLost) {
  Child launcher({actor(), "launch", "2", "grace=2", "0=wait-in-vain:1", "1=deaf"});
  launcher.ranks(2);
  launcher.signal(SIGTERM);
  const Outcome outcome = launcher.finish(seconds{20});
  EXPECT_EQ(outcome.status.shell_code(), 74);
  EXPECT_THAT(outcome.err,
              HasSubstr("SIGTERM: asked the ranks to stop within 2 s; a second signal"));
  EXPECT_THAT(
      outcome.err,
      HasSubstr(
          "sherd: rank 0 was asked to stop within 2 s and still waits for the others in a barrier. "
          "steps 3 to 5 are lost: no checkpoint has them; stopping (exit 74). A larger --grace"));
}

TEST(StopWatch, EndsWith75WhereNothingIsLost) {
  Child launcher({actor(), "launch", "2", "grace=2", "0=wait-in-vain:0", "1=deaf"});
  launcher.ranks(2);
  launcher.signal(SIGTERM);
  const Outcome outcome = launcher.finish(seconds{20});
  EXPECT_EQ(outcome.status.shell_code(), 75);
  EXPECT_THAT(outcome.err, HasSubstr("Nothing is lost; stopping (exit 75)"));
}

// A stop takes as long as it takes: no launcher has set a deadline.
TEST(StopWatch, LeavesARankAloneWithoutADeadline) {
  Child launcher({actor(), "launch", "1", "0=wait-in-vain:1"});
  const auto ranks = launcher.ranks(1);
  launcher.signal(SIGTERM);
  ::usleep(3'000'000);
  EXPECT_EQ(::kill(ranks[0], 0), 0);
  launcher.signal(SIGTERM);
  EXPECT_THAT(launcher.finish().err, Not(HasSubstr("are lost")));
}

// What is left when one rank has stopped has time for three saves more, as the ranks estimate them.
TEST(StopWatch, GivesRanksTheTimeOfTheirSaves) {
  Child launcher({actor(), "launch", "2", "grace=none", "0=wait-in-vain:1", "1=stop"});
  const auto ranks = launcher.ranks(2);
  ::kill(ranks[1], SIGTERM);
  EXPECT_EQ(launcher.line(), "asked to stop");
  EXPECT_EQ(launcher.line(), "has 81 s to stop");
}

}  // namespace
}  // namespace sherd::launch::testing
