#pragma once
// Signals as a request to stop.

#include <chrono>
#include <optional>

namespace sherd::launch {

/// Records whether this process was asked to stop. The state is per process, as signal handlers
/// are.
class StopRequest {
 public:
  /// Handles SIGTERM, SIGINT and SIGUSR1 from now on: the first is a request, a second has its
  /// default effect. `launched`: a launcher started the process and passes its signals on. Batch
  /// systems and terminals signal both launcher and ranks, and a launcher may repeat itself. So
  /// signals of the parent are counted apart from others, and those of the parent within one second
  /// count once. Call it on the main thread; handlers run on their own stack.
  static void install(bool launched);
  /// True after a request. Ranks must agree on it before they act: it may not have reached all.
  [[nodiscard]] static bool requested() noexcept;
  /// Time of the first request.
  [[nodiscard]] static std::optional<std::chrono::steady_clock::time_point> requested_at() noexcept;
};

}  // namespace sherd::launch
