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
  sigset_t before;
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    SignalQueue queue;
    EXPECT_EQ(queue.next(), std::nullopt);
    ::raise(SIGTERM);
    EXPECT_EQ(queue.next(), SIGTERM);
    ::raise(SIGINT);  // nobody asks for it: it must not strike at the end
  }
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
}

}  // namespace
}  // namespace sherd::launch
