#pragma once
// Which evaluation of a run is the best, and for how long there has been no better one.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "llm/config/run_config.h"
#include "llm/runs/run_records.h"

namespace llm::runs {

/// The best of some evaluations.
struct BestEvaluation {
  config::BestBy by = config::BestBy::Loss;  ///< never Auto
  std::int64_t step = 0;
  double value = 0;

  /// "f1 46.2 at step 120"
  [[nodiscard]] std::string text() const;
};

/// "loss", "em" or "f1".
[[nodiscard]] std::string name_of(config::BestBy by);

/// What `policy.best_by` comes to.
[[nodiscard]] config::BestBy measure_of(const config::EvalSection& policy);

/// How a run's evaluations, in order, went by `policy`.
struct EvaluationCourse {
  std::optional<BestEvaluation> best;    ///< the first of equals; none where none has the measure
  std::int64_t without_improvement = 0;  ///< the last ones, by more than `policy.min_delta`
  bool is_over = false;                  ///< `policy.patience` is at its end
};

/// Of the evaluations of one set: others do not count, nor does one before the first step, since it
/// has no checkpoint, nor one that lacks the measure (of another `eval.generate`). A measure that
/// is not finite is no improvement.
[[nodiscard]] EvaluationCourse course_of(std::span<const Evaluation> evaluations,
                                         const EvaluationSet& set,
                                         const config::EvalSection& policy);

/// The set that tells how a run goes: the first of data.eval, as it was read last.
[[nodiscard]] EvaluationSet first_set(std::span<const Evaluation> evaluations);

}  // namespace llm::runs
