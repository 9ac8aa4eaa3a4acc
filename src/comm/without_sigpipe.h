#pragma once
// Writing to a socket whose other end is gone, as an error and not as a signal.

#include <csignal>

namespace sherd::detail {

/// While it lives, this thread and those that it starts get no SIGPIPE, which would end the
/// process: Gloo writes to its sockets without saying MSG_NOSIGNAL. The process's own handling
/// stays as it is. Python's programs ignore the signal.
class WithoutSigpipe {
 public:
  WithoutSigpipe();
  ~WithoutSigpipe();
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t before_ = {};      // the thread's mask
  bool was_pending_ = false;  // before it was blocked
};

}  // namespace sherd::detail
