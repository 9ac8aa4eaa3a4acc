#include "llm/runs/best_evaluation.h"

#include <cmath>

#include <fmt/core.h>

namespace llm::runs {

namespace {

using config::BestBy;

std::optional<double> measure_in(const Evaluation& one, BestBy by) {
  const std::optional<double> value = by == BestBy::Loss ? one.loss
                                      : by == BestBy::Em ? one.em
                                                         : one.f1;
  return value && std::isfinite(*value) ? value : std::nullopt;
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

EvaluationCourse course_of(std::span<const Evaluation> evaluations, const std::string& data_sha256,
                           const config::EvalSection& policy) {
  const BestBy by = measure_of(policy);
  EvaluationCourse course;
  std::optional<double> improved;  // the last improvement by more than min_delta
  for (const Evaluation& one : evaluations) {
    if (one.step == 0 || one.data_sha256 != data_sha256) {
      continue;
    }
    const std::optional<double> value = measure_in(one, by);
    if (value && (!course.best || is_better(*value, course.best->value, by, 0))) {
      course.best = {by, one.step, *value};
    }
    if (value && is_better(*value, improved, by, policy.min_delta)) {
      improved = value;
      course.without_improvement = 0;
    } else {
      ++course.without_improvement;
    }
  }
  course.is_over = policy.patience && course.without_improvement >= *policy.patience;
  return course;
}

}  // namespace llm::runs
