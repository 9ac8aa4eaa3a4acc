#pragma once
// Threads that take no signals.

#include <csignal>
#include <thread>
#include <utility>

namespace sherd::launch {

/// A thread that takes no signal from the main thread, whose waits a stop request is to interrupt.
template <class Fn>
[[nodiscard]] std::thread start_quiet_thread(Fn&& fn) {
  sigset_t all;
  sigset_t previous;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  std::thread thread(std::forward<Fn>(fn));
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  return thread;
}

}  // namespace sherd::launch
