#pragma once
// Whether a periodic action is due.

#include <chrono>
#include <cstdint>

#include "llm/config/measures.h"

namespace llm::train {

/// One of `checkpoint.every` and `eval.every`. Steps and epochs are counted alike on every rank;
/// time is measured by one rank's clock, which informs the others.
class ActionInterval {
 public:
  using Clock = std::chrono::steady_clock;

  /// Time runs from `now` on.
  ActionInterval(const config::Every& every, std::int64_t steps_per_epoch, Clock::time_point now)
      : every_(every), steps_per_epoch_(steps_per_epoch), last_(now) {}

  /// Whether the time has passed since it was last done, if it is done by time.
  [[nodiscard]] bool time_is_up(Clock::time_point now) const {
    return every_.unit == config::Every::Unit::Time &&
           now - last_ >= std::chrono::milliseconds(every_.count);
  }
  /// Whether it is due after `step` (from 1), where the clock says `time_is_up`.
  [[nodiscard]] bool is_due(std::int64_t step, bool time_is_up) const;
  /// Records that it was done: the interval starts again.
  void done(Clock::time_point now) { last_ = now; }

 private:
  config::Every every_;
  std::int64_t steps_per_epoch_;
  Clock::time_point last_;
};

}  // namespace llm::train
