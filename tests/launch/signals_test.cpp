#include "launch/signals.h"

#include "gtest/gtest.h"

namespace sherd::launch {
namespace {

TEST(Signals, HaveNames) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(64), "64");
}

TEST(SignalQueue, HoldsSignalsAndGivesTheMaskBack) {
  sigset_t after;
  {
    SignalQueue queue;
    EXPECT_EQ(queue.next(), std::nullopt);
    ::raise(SIGTERM);
    EXPECT_EQ(queue.next(), SIGTERM);
    ::raise(SIGINT);  // nobody asks for it: it must not strike at the end
  }
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD, SIGPIPE}) {
    EXPECT_EQ(sigismember(&after, signal), 0) << signal;
  }
}

}  // namespace
}  // namespace sherd::launch
