#include "llm/train/best_so_far.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "llm/setup/agreement.h"

namespace llm::train {

namespace {

using nlohmann::json;

std::string text_of(const runs::EvaluationCourse& course) {
  json text = {{"without_improvement", course.without_improvement}, {"is_over", course.is_over}};
  if (course.best) {
    text["best"] = {course.best->step, course.best->value};
  }
  return text.dump();
}

runs::EvaluationCourse course_in(const std::string& text, config::BestBy by) {
  const json read = json::parse(text);
  runs::EvaluationCourse course;
  course.without_improvement = read["without_improvement"].get<std::int64_t>();
  course.is_over = read["is_over"].get<bool>();
  if (read.contains("best")) {
    course.best = {by, read["best"][0].get<std::int64_t>(), read["best"][1].get<double>()};
  }
  return course;
}

}  // namespace

BestSoFar::BestSoFar(const sherd::World& world, const config::EvalSection& policy,
                     runs::EvaluationSet set,
                     const std::function<std::vector<runs::Evaluation>()>& earlier)
    : world_(world), policy_(policy), set_(std::move(set)) {
  agree([&] { evaluations_ = earlier(); });
}

void BestSoFar::add(runs::Evaluation evaluation) {
  agree([&] { evaluations_.push_back(std::move(evaluation)); });
}

void BestSoFar::agree(const std::function<void()>& change) {
  const std::string text = setup::from_rank_0(world_, [&] {
    change();
    return text_of(runs::course_of(evaluations_, set_, policy_));
  });
  course_ = course_in(text, runs::measure_of(policy_));
}

}  // namespace llm::train
