#pragma once
// How the evaluations of a run go: the same answer on every rank.

#include <functional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/runs/best_evaluation.h"
#include "sherd/world.h"

namespace llm::train {

/// Rank 0 keeps the evaluations and judges; the others are told.
class BestSoFar {
 public:
  /// `set` is the one whose evaluations count; `earlier` gives those that were made
  /// already, and is called on rank 0 alone. Collective. Fails on all ranks as `earlier` does.
  BestSoFar(const sherd::World& world, const config::EvalSection& policy, runs::EvaluationSet set,
            const std::function<std::vector<runs::Evaluation>()>& earlier);

  /// Counts one more evaluation. Collective; rank 0's values count.
  void add(runs::Evaluation evaluation);
  [[nodiscard]] const runs::EvaluationCourse& course() const { return course_; }
  /// Whether the best evaluation is that of `step`.
  [[nodiscard]] bool is_at(std::int64_t step) const {
    return course_.best && course_.best->step == step;
  }

 private:
  void agree(const std::function<void()>& change);

  sherd::World world_;
  config::EvalSection policy_;
  runs::EvaluationSet set_;
  std::vector<runs::Evaluation> evaluations_;  // on rank 0
  runs::EvaluationCourse course_;
};

}  // namespace llm::train
