#include "launch/signals.h"

#include <cerrno>
#include <cstring>

#include <sys/signalfd.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::launch {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? std::string("SIG") + name : std::to_string(signal);
}

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kStopSignals) {
    sigaddset(&signals, signal);
  }
  return signals;
}

void release_stop_signals() {
  const sigset_t signals = stop_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

SignalQueue::SignalQueue() {
  // Inherited as ignored, it would make the kernel reap children itself.
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t queued = stop_signals();
  sigaddset(&queued, SIGCHLD);
  sigaddset(&queued, SIGPIPE);
  fd_ = FileDescriptor(::signalfd(-1, &queued, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd_.get() < 0) {
    throw Error(ExitCode::Unavailable,
                std::string("cannot make a signal descriptor: ") + std::strerror(errno));
  }
  ::pthread_sigmask(SIG_BLOCK, &queued, &previous_);
}

SignalQueue::~SignalQueue() {
  while (next()) {
    // A pending signal would be delivered when the mask is restored.
  }
  ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

std::optional<int> SignalQueue::next() {
  signalfd_siginfo info{};
  ssize_t count = 0;
  do {
    count = ::read(fd_.get(), &info, sizeof info);
  } while (count < 0 && errno == EINTR);
  return count == sizeof info ? std::optional(static_cast<int>(info.ssi_signo)) : std::nullopt;
}

}  // namespace sherd::launch
