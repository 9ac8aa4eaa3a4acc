#pragma once
// When a run evaluates, and how its evaluations go.

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "llm/train/best_so_far.h"
#include "llm/train/interval.h"
#include "llm/train/run.h"

namespace llm::train {

/// The evaluations of a run. All methods are collective, unless they say otherwise.
class Evaluations {
 public:
  /// Of a run whose log is open.
  explicit Evaluations(Run& run);

  /// Whether they are due after a step. Not collective.
  [[nodiscard]] bool is_due(std::int64_t step) const;
  /// Whether they are due by this rank's clock. Not collective.
  [[nodiscard]] bool time_is_up(std::chrono::steady_clock::time_point now) const {
    return interval_.time_is_up(now);
  }
  /// What all ranks take for the clock. Not collective.
  void set_time_is_up(bool is_up) { time_is_up_ = is_up; }

  /// Evaluates each file, or each that is not in the log yet. False: stopped in the middle.
  [[nodiscard]] bool evaluate(std::int64_t step, bool only_missing = false);

  /// Not collective.
  [[nodiscard]] const runs::EvaluationCourse& course() const { return best_.course(); }
  /// Whether the best evaluation is that of a step. Not collective.
  [[nodiscard]] bool is_best_at(std::int64_t step) const { return best_.is_at(step); }
  /// Those before the start that tell of the best so far. Not collective: rank 0.
  [[nodiscard]] std::vector<runs::Evaluation> earlier() const;

 private:
  [[nodiscard]] runs::EvaluationSet set_of(std::size_t data_file) const;
  // The one whose evaluations tell the best.
  [[nodiscard]] runs::EvaluationSet first_set() const;
  [[nodiscard]] EvaluationKey key(std::int64_t step, std::size_t data_file) const;
  [[nodiscard]] bool is_in_log(const EvaluationKey& key);
  [[nodiscard]] eval::EvaluationOptions options(std::int64_t samples);
  bool evaluate_file(std::int64_t step, std::size_t data_file);
  void record(const EvaluationKey& key, std::size_t data_file,
              const eval::EvaluationResult& result);
  void judge(std::int64_t step, const eval::EvaluationResult& result);

  Run& run_;
  ActionInterval interval_;
  bool time_is_up_ = false;  // on the first rank's clock, as of the last step
  BestSoFar best_;
};

}  // namespace llm::train
