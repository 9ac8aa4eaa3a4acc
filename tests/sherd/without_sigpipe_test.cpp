#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/comm/exchange.h"

namespace sherd::detail {
namespace {

// Gloo's way: without MSG_NOSIGNAL.
int errno_of_a_write_to_nobody() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ::close(ends[1]);
  const ssize_t written = ::write(ends[0], "x", 1);
  const int why = written < 0 ? errno : 0;
  ::close(ends[0]);
  return why;
}

TEST(WithoutSigpipe, AWriteToNobodyIsAnError) {
  for (int i = 0; i < 3; ++i) {
    const WithoutSigpipe errors_not_signals;
    EXPECT_EQ(errno_of_a_write_to_nobody(), EPIPE);
    EXPECT_EQ(errno_of_a_write_to_nobody(), EPIPE);
  }
}

TEST(WithoutSigpipe, HoldsForThreadsThatAreStartedUnderIt) {
  std::thread thread;
  {
    const WithoutSigpipe errors_not_signals;
    thread = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(errno_of_a_write_to_nobody(), EPIPE);
    });
  }
  thread.join();
}

TEST(WithoutSigpipe, LeavesTheProcessAsItWas) {
  EXPECT_EXIT(
      {
        { const WithoutSigpipe errors_not_signals; }
        static_cast<void>(errno_of_a_write_to_nobody());
      },
      testing::KilledBySignal(SIGPIPE), "");
}

// What was asked for before is not taken away.
TEST(WithoutSigpipe, LeavesASignalThatWaited) {
  EXPECT_EXIT(
      {
        sigset_t sigpipe;
        sigemptyset(&sigpipe);
        sigaddset(&sigpipe, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &sigpipe, nullptr);
        raise(SIGPIPE);
        { const WithoutSigpipe errors_not_signals; }
        pthread_sigmask(SIG_UNBLOCK, &sigpipe, nullptr);
      },
      testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace sherd::detail
