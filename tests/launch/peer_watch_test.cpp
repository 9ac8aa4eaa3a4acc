#include "launch/peer_watch.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/error.h"
#include "tests/launch/child.h"

namespace sherd::launch::testing {
namespace {

using ::testing::HasSubstr;

RankEnvironment rank_with(int supervisor_fd) {
  RankEnvironment environment;
  environment.supervisor_fd = supervisor_fd;
  return environment;
}

/// Blocks for ever, as a rank does in a collective with a dead peer.
[[noreturn]] void wait_in_vain() {
  for (;;) {
    ::pause();
  }
}

void lose_peer() {
  Pipe pipe = make_pipe();
  const PeerWatch watch(rank_with(::dup(pipe.read_end.get())));
  write_all(pipe.write_end.get(), "rank 1 was killed by signal 9 (SIGKILL)\n");
  wait_in_vain();
}

void lose_launcher() {
  Pipe pipe = make_pipe();
  const PeerWatch watch(rank_with(::dup(pipe.read_end.get())));
  pipe.write_end.close();
  wait_in_vain();
}

void hear_nothing() {
  Pipe pipe = make_pipe();
  { const PeerWatch watch(rank_with(::dup(pipe.read_end.get()))); }
  std::_Exit(5);
}

TEST(PeerWatchDeathTest, EndsTheProcessWhenAPeerIsLost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(lose_peer(), ::testing::ExitedWithCode(76),
              "^\\[rank 0\\] peer lost: rank 1 was killed by signal 9 \\(SIGKILL\\); stopping "
              "\\(exit 76\\)\n$");
}

TEST(PeerWatchDeathTest, EndsTheProcessWhenTheLauncherIsGone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(lose_launcher(), ::testing::ExitedWithCode(76),
              "launcher lost: sherd launch is gone; stopping \\(exit 76\\)");
}

TEST(PeerWatchDeathTest, StopsQuietly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(hear_nothing(), ::testing::ExitedWithCode(5), "^$");
}

TEST(PeerWatch, DoesNothingWithoutALauncher) {
  const PeerWatch watch(RankEnvironment{});
}

TEST(PeerWatch, RefusesADescriptorThatIsNoPipe) {
  try {
    const PeerWatch watch(rank_with(987));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("SHERD_SUPERVISOR_FD=987 is no pipe of this process"));
  }
}

}  // namespace
}  // namespace sherd::launch::testing
