#pragma once
// When a run saves, what a full disk costs, and which checkpoints stay.

#include <chrono>
#include <cstdint>
#include <optional>

#include "llm/setup/checkpoints.h"
#include "llm/train/evaluations.h"
#include "llm/train/interval.h"
#include "llm/train/run.h"

namespace llm::train {

/// The checkpoints that a run saves. All methods are collective, unless they say otherwise; the
/// figures of all steps have been read when they are called.
class Saves {
 public:
  Saves(Run& run, const Evaluations& evaluations);

  /// Whether a checkpoint is due after a step. Not collective.
  [[nodiscard]] bool is_due(std::int64_t step) const;
  /// Whether it is due by this rank's clock. Not collective.
  [[nodiscard]] bool time_is_up(std::chrono::steady_clock::time_point now) const {
    return interval_.time_is_up(now);
  }
  /// What all ranks take for the clock. Not collective.
  void set_time_is_up(bool is_up) { time_is_up_ = is_up; }
  /// The newest step that a checkpoint holds. Not collective.
  [[nodiscard]] std::int64_t saved_step() const { return saved_step_; }

  /// Saves. A full disk costs the checkpoint and not the run: that is said, and the next interval
  /// tries again. At the last step as save_last().
  void save_if_there_is_room(std::int64_t step);
  /// The newest work, after which nothing comes: says what is lost where there is no room for it.
  void save_last(std::int64_t step);
  /// After an evaluation: keeps the best one's checkpoint.
  void save_best(std::int64_t step);

 private:
  void save(std::int64_t step);
  // Whether older checkpoints were removed, of those that the next save would remove.
  bool make_room();
  // The best evaluation whose checkpoint is there. On rank 0.
  [[nodiscard]] std::optional<std::int64_t> kept_best();
  // Of the evaluations before the start.
  [[nodiscard]] std::optional<std::int64_t> best_at_start() const;
  void prune(std::int64_t newest);

  Run& run_;
  const Evaluations& evaluations_;
  setup::Checkpoints checkpoints_;
  ActionInterval interval_;
  bool time_is_up_ = false;                // on the first rank's clock, as of the last step
  bool starts_elsewhere_;                  // at a checkpoint of another folder
  std::int64_t saved_step_;                // the newest that a checkpoint holds
  std::optional<std::int64_t> kept_best_;  // on rank 0: the newest best one that was saved
};

}  // namespace llm::train
