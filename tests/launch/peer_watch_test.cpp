#include "launch/peer_watch.h"

#include <chrono>
#include <cstdlib>
#include <thread>

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

TEST(PeerWatch, ALossThatIsAwaitedEndsNothing) {
  Pipe pipe = make_pipe();
  PeerWatch watch(rank_with(::dup(pipe.read_end.get())));
  const auto start = std::chrono::steady_clock::now();
  std::thread launcher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    write_all(pipe.write_end.get(), "rank 0 exited with code 73\n");
  });
  watch.await_loss(std::chrono::seconds(20));
  const auto waited = std::chrono::steady_clock::now() - start;
  launcher.join();
  EXPECT_GE(waited, std::chrono::milliseconds(300));
  EXPECT_LT(waited, std::chrono::seconds(15));
}

TEST(PeerWatch, ALossThatDoesNotComeIsNotAwaitedForEver) {
  Pipe pipe = make_pipe();
  PeerWatch watch(rank_with(::dup(pipe.read_end.get())));
  watch.await_loss(std::chrono::milliseconds(50));
}

TEST(PeerWatchDeathTest, StopsQuietly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(hear_nothing(), ::testing::ExitedWithCode(5), "^$");
}

// A shell stands for the launcher; the rank under it does not hear the signal that ends it.
std::vector<std::string> launcher_of_a_rank() {
  return {"/bin/sh", "-c", actor() + " act 0=watch & wait"};
}

TEST(PeerWatch, ARankOfAnotherLauncherEndsWithIt) {
  for (const std::vector<std::string>& variables :
       {std::vector<std::string>{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"},
        {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=1"},
        {"RANK=0", "WORLD_SIZE=1", "TORCHELASTIC_RUN_ID=none"}}) {
    Child launcher(launcher_of_a_rank(), variables);
    launcher.ranks(1);
    launcher.signal(SIGKILL);
    EXPECT_EQ(launcher.finish(seconds{3}).err,
              "[rank 0] launcher lost: the process that started this rank is gone; stopping "
              "(exit 76)\n")
        << variables[0];
  }
}

TEST(PeerWatch, ARankStartedByHandOutlivesItsShell) {
  Child shell(launcher_of_a_rank(), {"RANK=0", "WORLD_SIZE=1"});
  const pid_t rank = shell.ranks(1)[0];
  shell.signal(SIGKILL);
  ::usleep(500'000);
  EXPECT_EQ(::kill(rank, SIGKILL), 0);  // it was there
  EXPECT_EQ(shell.finish().err, "");
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
    EXPECT_THAT(error.what(), HasSubstr("SHERD_SUPERVISOR_FD=987 is not a pipe of this process"));
  }
}

}  // namespace
}  // namespace sherd::launch::testing
