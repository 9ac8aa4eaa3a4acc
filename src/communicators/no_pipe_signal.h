#pragma once
// Writes to connections that the other end has closed.

#include <cerrno>
#include <csignal>
#include <ctime>

namespace sherd::detail {

/// While it lives, such a write fails on this thread, and on threads started meanwhile, instead of
/// ending the process by SIGPIPE: Gloo writes to sockets without MSG_NOSIGNAL, and a program that
/// uses the library need not ignore the signal.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &previous_);
  }
  ~NoPipeSignal() {
    if (!was_pending_) {  // it would be delivered when the mask is restored
      const timespec at_once{};
      while (::sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t previous_{};
  bool was_pending_ = false;
};

}  // namespace sherd::detail
