#pragma once
// How a process ended, in numbers and in words.

#include <string>

namespace sherd::launch {

/// The end of a process: an exit code, or the signal that killed it.
struct ExitStatus {
  int code = 0;    ///< meaningless if `signal` is set
  int signal = 0;  ///< 0: it exited by itself

  /// From the status that waitpid gives.
  [[nodiscard]] static ExitStatus from_wait(int status);
  /// What a shell shows: the code, or 128 + signal.
  [[nodiscard]] int shell_code() const { return signal != 0 ? 128 + signal : code; }
  /// "was killed by signal 9 (SIGKILL)" or "exited with code 79 (the loss is not finite)".
  [[nodiscard]] std::string text() const;
};

}  // namespace sherd::launch
