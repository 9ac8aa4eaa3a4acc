#include "llm/train/evaluations.h"

#include <utility>

#include <fmt/core.h>

#include "llm/eval/prediction_files.h"
#include "llm/text/printable.h"
#include "llm/train/output_folder.h"

namespace llm::train {

namespace {

// The name of a sample, for people.
std::string unit_of(const Run& run) {
  return run.objective == nullptr ? "question" : "pair";
}

}  // namespace

Evaluations::Evaluations(Run& run)
    : run_(run),
      interval_(run.config().eval.every, run.inputs.data.length.steps_per_epoch,
                std::chrono::steady_clock::now()),
      best_(run.world, run.config().eval, first_set(), [&] { return earlier(); }) {}

std::vector<runs::Evaluation> Evaluations::earlier() const {
  return run_.inputs.data.heldout.empty() ? std::vector<runs::Evaluation>()
                                          : run_.log->evaluations(key(run_.start.step, 0));
}

runs::EvaluationSet Evaluations::set_of(std::size_t data_file) const {
  const inputs::Heldout& heldout = run_.inputs.data.heldout[data_file];
  return runs::evaluation_set(static_cast<int>(data_file), run_.config().data.eval[data_file],
                              heldout.sha256, heldout.format);
}

runs::EvaluationSet Evaluations::first_set() const {
  return run_.inputs.data.heldout.empty() ? runs::EvaluationSet() : set_of(0);
}

bool Evaluations::is_due(std::int64_t step) const {
  const bool is_last = step == run_.inputs.data.length.total_steps;
  return !run_.inputs.data.heldout.empty() &&
         (interval_.is_due(step, time_is_up_) || (is_last && run_.config().eval.at_end));
}

EvaluationKey Evaluations::key(std::int64_t step, std::size_t data_file) const {
  const inputs::Heldout& heldout = run_.inputs.data.heldout[data_file];
  return {step, set_of(data_file), heldout.sha256,
          static_cast<std::int64_t>(heldout.dataset.samples.size()), run_.config().eval.generate};
}

eval::EvaluationOptions Evaluations::options(std::int64_t samples) {
  const config::EvalSection& policy = run_.config().eval;
  eval::EvaluationOptions options{policy.batch, policy.generate, run_.inputs.tokenizer.stop_ids(),
                                  [this] { return run_.stops_here(); }};
  options.objective = run_.objective.get();
  options.alone = [this](const std::function<void()>& work) { run_.failure.keep(work); };
  if (run_.progress != nullptr) {
    options.on_progress = [progress = run_.progress, samples, unit = unit_of(run_) + "s"](
                              std::int64_t done) { progress->count(done, samples, unit); };
  }
  return options;
}

bool Evaluations::is_in_log(const EvaluationKey& key) {
  return !setup::from_rank_0(run_.world, [&] {
            return std::string(run_.log->has(key) ? "yes" : "");
          }).empty();
}

bool Evaluations::evaluate(std::int64_t step, bool only_missing) {
  run_.failure.share(run_.world);
  for (std::size_t i = 0; i < run_.inputs.data.heldout.size(); ++i) {
    if (!(only_missing && is_in_log(key(step, i))) && !evaluate_file(step, i)) {
      return false;
    }
  }
  interval_.done(std::chrono::steady_clock::now());
  return true;
}

bool Evaluations::evaluate_file(std::int64_t step, std::size_t data_file) {
  const inputs::Heldout& heldout = run_.inputs.data.heldout[data_file];
  const EvaluationKey of_step = key(step, data_file);
  const bool are_several = run_.inputs.data.heldout.size() > 1;
  const std::string of_file = are_several ? " of " + heldout.dataset.report.name : "";
  run_.say(fmt::format("evaluating {}{} {} …", text::counted(of_step.samples, unit_of(run_)),
                       of_file,
                       step == 0 ? "before the first step" : fmt::format("after step {}", step)));
  const auto result = [&] {
    const track::Working evaluating(run_.progress, "evaluating" + of_file);
    return eval::evaluate(*run_.model, heldout.dataset, run_.inputs.tokenizer,
                          options(of_step.samples));
  }();
  if (!result) {
    return false;
  }
  record(of_step, data_file, *result);
  run_.say(fmt::format("evaluation{}: {}", of_file,
                       eval::evaluation_text(*result, run_.config().eval.generate)));
  if (data_file == 0) {
    judge(step, *result);
  }
  return true;
}

void Evaluations::record(const EvaluationKey& key, std::size_t data_file,
                         const eval::EvaluationResult& result) {
  const config::EvalSection& policy = run_.config().eval;
  const bool keeps_answers = policy.generate && policy.predictions;
  const std::string answers = keeps_answers ? eval::predictions_name(key.step, data_file) : "";
  setup::on_all_ranks(run_.world, [&] {
    if (run_.log) {
      const bool are_kept =
          keeps_answers &&
          if_there_is_room(
              answers, [&](const std::string& line) { run_.progress->warn(line); },
              [&] {
                eval::write_predictions(run_.config().train.output, answers, result.predictions);
              });
      run_.log->write(key, run_.inputs.data.heldout[data_file].dataset.report.name, result,
                      are_kept ? answers + ".json" : "");
    }
  });
}

void Evaluations::judge(std::int64_t step, const eval::EvaluationResult& result) {
  runs::Evaluation evaluation{.step = step,
                              .samples = result.samples,
                              .loss = result.loss,
                              .seconds = result.seconds,
                              .set = first_set()};
  if (run_.config().eval.generate) {
    evaluation.em = result.em;
    evaluation.f1 = result.f1;
  }
  best_.add(std::move(evaluation));
  const runs::EvaluationCourse& course = best_.course();
  if (step == 0 || !course.best) {
    return;
  }
  if (best_.is_at(step)) {
    run_.on_rank_0([&] { run_.log->write(*course.best); });
  }
  run_.say(best_.is_at(step) ? "the best evaluation so far: " + course.best->text()
                             : "the best evaluation stays " + course.best->text());
}

}  // namespace llm::train
