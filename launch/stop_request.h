#pragma once
// Signals as a request to stop.

#include <chrono>
#include <optional>

namespace sherd::launch {

/// Whether this process was asked to stop. The state is the process's, as signal handlers are.
class StopRequest {
 public:
  /// Handles SIGTERM, SIGINT and SIGUSR1 from now on: the first is a request, a second ends the
  /// process as it would have without a handler. `launched`: the process was started by a launcher,
  /// which passes on what it is sent itself. A batch system or a terminal signals launcher and
  /// ranks alike, so that one request may reach a rank once from each; and a launcher may repeat
  /// itself. Signals of the parent and those of others are therefore counted apart, and those of
  /// the parent within one second are one. Called by the main thread, which computes: handlers run
  /// on a stack of their own.
  static void install(bool launched);
  /// True once asked. Ranks must agree on it before they act: only some of them may have been
  /// asked.
  [[nodiscard]] static bool requested() noexcept;
  /// When it was asked first.
  [[nodiscard]] static std::optional<std::chrono::steady_clock::time_point> requested_at() noexcept;
};

}  // namespace sherd::launch
