#pragma once
// A rank's ear for SIGTERM and SIGINT.

namespace sherd::launch {

/// Whether this process was asked to stop. The state is the process's, as signal handlers are.
class StopRequest {
 public:
  /// Handles SIGTERM and SIGINT from now on: the first asks for a stop, a second ends the process
  /// as it would have without a handler. `launched`: the process was started by a launcher, whose
  /// signals repeat what the launcher itself was sent; those from the parent process ask, but never
  /// count as the second. (A batch system or a terminal signals launcher and ranks alike, and the
  /// launcher passes its signal on: two signals for one request.)
  static void install(bool launched);
  /// True once asked. Ranks must agree on it before they act: only some of them may have been
  /// asked.
  [[nodiscard]] static bool requested() noexcept;
};

}  // namespace sherd::launch
