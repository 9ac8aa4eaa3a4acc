#pragma once
// Threads that take no signals.

#include <csignal>
#include <thread>
#include <utility>

namespace sherd::files {

/// While it lives, this thread takes no signal.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t previous_{};
};

/// A thread that takes no signal from the main thread, whose waits a stop request is to interrupt.
/// Throws std::system_error where the system has no more threads.
template <class Fn>
[[nodiscard]] std::thread start_quiet_thread(Fn&& fn) {
  const AllSignalsBlocked blocked;
  return std::thread(std::forward<Fn>(fn));
}

}  // namespace sherd::files
