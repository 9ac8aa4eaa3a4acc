#include "comm/without_sigpipe.h"

#include <ctime>

namespace sherd::detail {

namespace {

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

WithoutSigpipe::WithoutSigpipe() : was_pending_(is_pending()) {
  const sigset_t sigpipe = only_sigpipe();
  pthread_sigmask(SIG_BLOCK, &sigpipe, &before_);
}

// One that came meanwhile would be delivered as soon as it is let through.
WithoutSigpipe::~WithoutSigpipe() {
  const sigset_t sigpipe = only_sigpipe();
  const timespec at_once{};
  while (!was_pending_ && is_pending() && sigtimedwait(&sigpipe, nullptr, &at_once) == SIGPIPE) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace sherd::detail
