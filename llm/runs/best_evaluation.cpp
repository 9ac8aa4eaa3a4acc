#include "llm/runs/best_evaluation.h"

#include <cmath>

#include <fmt/core.h>

namespace llm::runs {

namespace {

using config::BestBy;

std::optional<double> measure_in(const Evaluation& one, BestBy by) {
  return by == BestBy::Loss ? one.loss : by == BestBy::Em ? one.em : one.f1;
}

// By more than `delta`. Anything is better than nothing.
bool is_better(double value, const std::optional<double>& than, BestBy by, double delta) {
  const double gain = !than ? 0 : by == BestBy::Loss ? *than - value : value - *than;
  return !than || gain > delta;
}

}  // namespace

std::string BestEvaluation::text() const {
  return fmt::format("{} {:.{}f} at step {}", name_of(by), value, by == BestBy::Loss ? 4 : 1, step);
}

std::string name_of(BestBy by) {
  return by == BestBy::Em ? "em" : by == BestBy::F1 ? "f1" : "loss";
}

BestBy measure_of(const config::EvalSection& policy) {
  const BestBy usual = policy.generate ? BestBy::F1 : BestBy::Loss;
  return policy.best_by == BestBy::Auto ? usual : policy.best_by;
}

EvaluationCourse course_of(std::span<const Evaluation> evaluations, const EvaluationSet& set,
                           const config::EvalSection& policy) {
  const BestBy by = measure_of(policy);
  EvaluationCourse course;
  std::optional<double> improved;  // the last improvement by more than min_delta
  for (const Evaluation& one : evaluations) {
    const std::optional<double> value = measure_in(one, by);
    if (one.step == 0 || one.set != set || !value) {
      continue;
    }
    const bool is_finite = std::isfinite(*value);
    if (is_finite && (!course.best || is_better(*value, course.best->value, by, 0))) {
      course.best = {by, one.step, *value};
    }
    if (is_finite && is_better(*value, improved, by, policy.min_delta)) {
      improved = value;
      course.without_improvement = 0;
    } else {
      ++course.without_improvement;
    }
  }
  course.is_over = policy.patience && course.without_improvement >= *policy.patience;
  return course;
}

EvaluationSet first_set(std::span<const Evaluation> evaluations) {
  EvaluationSet found;
  for (const Evaluation& one : evaluations) {
    if (one.set.index == 0) {
      found = one.set;
    }
  }
  return found;
}

}  // namespace llm::runs
