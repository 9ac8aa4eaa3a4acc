#pragma once
// Time during which this process ran.

#include <algorithm>
#include <chrono>

namespace sherd::launch {

/// A clock for waits. It counts the time between two calls of tick() up to kLongestTick only: if
/// the process was suspended in between (SIGSTOP, `scontrol suspend`, a closed laptop), the time of
/// the suspension does not count. Call tick() at least five times per second while you wait.
class RunningTime {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLongestTick{300};

  /// The time that the process has run since the start or the last restart().
  Clock::duration tick() {
    const auto now = Clock::now();
    elapsed_ += std::min<Clock::duration>(now - last_, kLongestTick);
    last_ = now;
    return elapsed_;
  }
  /// Starts again at zero.
  void restart() {
    elapsed_ = {};
    last_ = Clock::now();
  }

 private:
  Clock::time_point last_ = Clock::now();
  Clock::duration elapsed_{};
};

}  // namespace sherd::launch
