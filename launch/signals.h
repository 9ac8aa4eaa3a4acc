#pragma once
// Signals as a queue that can be polled, and their names.

#include <array>
#include <csignal>
#include <optional>
#include <string>

#include "launch/pipes.h"

namespace sherd::launch {

/// "SIGKILL" for 9; the number where there is no name.
[[nodiscard]] std::string signal_name(int signal);

/// The signals that ask a program to stop. SIGUSR1 is one, since it is what mpirun passes on to its
/// ranks without ending the job, and what batch systems are often told to send.
inline constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGUSR1};

/// They as a set for masks.
[[nodiscard]] sigset_t stop_signals();

/// Lets stop signals through that a launcher held back until this process was ready for them
/// (LaunchOptions::holds_stop_signals). Nothing changes where they were not held back.
void release_stop_signals();

/// Blocks the stop signals, SIGCHLD and SIGPIPE in the calling thread and offers them on a
/// descriptor instead. Give the thread its old mask back at the end. SIGPIPE is among them so that
/// writes to a closed pipe fail quietly.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// Readable when a signal waits.
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The next signal, or none. Never blocks.
  [[nodiscard]] std::optional<int> next();
  /// The mask from before; a child restores it before it executes.
  [[nodiscard]] const sigset_t& previous_mask() const { return previous_; }

 private:
  sigset_t previous_{};
  FileDescriptor fd_;
};

}  // namespace sherd::launch
