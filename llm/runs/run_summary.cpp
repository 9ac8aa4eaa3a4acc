#include "llm/runs/run_summary.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "llm/track/step_record.h"

namespace llm::runs {

namespace {

// From 1; the last step of an epoch belongs to it.
std::int64_t epoch_of(double epochs) {
  constexpr double kRounding = 1e-9;
  return static_cast<std::int64_t>(std::ceil(epochs - kRounding));
}

struct Mean {
  double sum = 0;
  double count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
};

std::vector<std::optional<double>> means(const std::map<std::int64_t, Mean>& by_epoch) {
  std::vector<std::optional<double>> found;
  for (const auto& [epoch, mean] : by_epoch) {
    found.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, epoch)));
    found.back() = mean.sum / mean.count;
  }
  return found;
}

// Figures of steps, added one after the other.
class StepSums {
 public:
  explicit StepSums(RunSummary& summary) : summary_(summary) {}

  void add(const track::StepRecord& step) {
    summary_.skipped_steps += step.skipped ? 1 : 0;
    if (step.supervised_tokens > 0 && !step.skipped) {  // else there is no loss
      losses_[epoch_of(step.epochs)].add(step.loss);
      loss_.add(step.loss);
      ++summary_.learned_steps;
      summary_.last_loss = step.loss;
    }
    tokens_ += static_cast<double>(step.tokens);
    samples_ += static_cast<double>(step.samples);
    mfu_.sum += step.mfu.value_or(0) * step.step_seconds;
    mfu_.count += step.mfu ? step.step_seconds : 0;
    summary_.train_seconds += step.step_seconds;
    summary_.data_wait_seconds += step.data_wait_seconds;
    for (const auto& [phase, seconds] : step.phase_seconds) {
      summary_.phase_seconds[phase] += seconds;
    }
    summary_.max_peak_bytes = std::max(summary_.max_peak_bytes, step.peak_rank_bytes);
    summary_.epochs = step.epochs;
    ++summary_.steps;
  }

  void finish() {
    summary_.mean_peak_bytes = summary_.max_peak_bytes;
    if (summary_.steps > 0) {
      const bool has_loss = summary_.learned_steps > 0;
      summary_.train_loss = has_loss ? loss_.sum / loss_.count : NAN;
      summary_.last_loss = has_loss ? summary_.last_loss : NAN;
    }
    if (const double seconds = summary_.train_seconds; seconds > 0) {
      summary_.train_samples_per_second = samples_ / seconds;
      summary_.train_tokens_per_second = tokens_ / seconds;
      summary_.train_steps_per_second = static_cast<double>(summary_.steps) / seconds;
    }
    if (mfu_.count > 0) {
      summary_.mfu = mfu_.sum / mfu_.count;
    }
    summary_.train_loss_by_epoch = means(losses_);
  }

 private:
  RunSummary& summary_;
  std::map<std::int64_t, Mean> losses_;
  Mean loss_;
  Mean mfu_;  // by the time of its steps
  double tokens_ = 0;
  double samples_ = 0;
};

void add_evaluations(const RunRecords& run, RunSummary& summary) {
  std::map<std::int64_t, Mean> losses;
  double samples = 0;
  double seconds = 0;
  const EvaluationSet first = first_set(run.evaluations);
  for (const Evaluation& one : run.evaluations) {
    seconds += one.seconds;
    samples += static_cast<double>(one.samples);
    if (one.set != first) {
      continue;
    }
    if (one.step == 0) {
      summary.eval_loss_at_start = one.loss;
      summary.em_at_start = one.em;
      summary.f1_at_start = one.f1;
    } else {
      losses[epoch_of(one.epochs)] = {one.loss, 1};
      summary.eval_loss = one.loss;
      summary.em = one.em ? one.em : summary.em;
      summary.f1 = one.f1 ? one.f1 : summary.f1;
    }
  }
  summary.best = course_of(run.evaluations, first, run.config.eval).best;
  summary.ended_early = run.ended_early;
  summary.eval_loss_by_epoch = means(losses);
  summary.eval_samples_per_second = seconds > 0 ? samples / seconds : 0;
  summary.runtime_seconds = summary.train_seconds + seconds + run.checkpoint_seconds;
}

void add_memory(const RanksMemory& memory, RunSummary& summary) {
  const auto& peaks = memory.rank_peak_bytes;
  summary.constant_bytes = memory.constant_bytes;
  summary.max_peak_bytes = memory.constant_bytes + *std::max_element(peaks.begin(), peaks.end());
  summary.mean_peak_bytes =
      memory.constant_bytes +
      std::accumulate(peaks.begin(), peaks.end(), std::int64_t{0}) / std::ssize(peaks);
}

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json or_null(const std::vector<std::optional<double>>& values) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& value : values) {
    list.push_back(or_null(value));
  }
  return list;
}

nlohmann::ordered_json best_json(const std::optional<BestEvaluation>& best) {
  return best ? nlohmann::ordered_json(
                    {{"by", name_of(best->by)}, {"step", best->step}, {"value", best->value}})
              : nlohmann::ordered_json(nullptr);
}

std::optional<double> last_value(const RunSummary& s, config::BestBy by) {
  return by == config::BestBy::Loss ? s.eval_loss : by == config::BestBy::Em ? s.em : s.f1;
}

// "stopped" and so on, as in summary.json; null if unknown.
nlohmann::ordered_json ended_json(const std::optional<track::End>& how) {
  return how ? nlohmann::ordered_json(track::name_of(*how)) : nlohmann::ordered_json(nullptr);
}

// " (1.2345 at the start)", of a figure that was also taken before the first step.
std::string at_start(const std::optional<double>& value, int digits) {
  return value ? fmt::format(" ({:.{}f} at the start)", *value, digits) : "";
}

// Not the `mem` of a step's line, which counts what ranks share in full.
std::string memory_text(const RunSummary& s) {
  const std::string mean = track::short_bytes(s.mean_peak_bytes);
  const std::string most = track::short_bytes(s.max_peak_bytes);
  return fmt::format(", memory per rank {}{}{}", mean,
                     most == mean ? "" : fmt::format(" (at most {})", most),
                     s.ranks > 1 && s.constant_bytes > 0 ? ", shared pages divided" : "");
}

}  // namespace

namespace {

// What is known without the steps, which `summary` has already.
RunSummary with_others(RunSummary summary, const RunRecords& run) {
  summary.name = run.name;
  summary.ended = run.ended;
  summary.ranks = run.ranks;
  summary.hosts = run.hosts;
  add_evaluations(run, summary);
  if (run.memory) {
    add_memory(*run.memory, summary);
  }
  return summary;
}

}  // namespace

RunSummary summary_of(const RunRecords& run) {
  RunSummary summary;
  StepSums sums(summary);
  for (const track::StepRecord& step : run.steps) {
    sums.add(step);
  }
  sums.finish();
  return with_others(std::move(summary), run);
}

RunSummary summary_of(const std::filesystem::path& folder) {
  RunSummary summary;
  StepSums sums(summary);
  const RunRecords run = read_run(folder, [&](const track::StepRecord& step) { sums.add(step); });
  sums.finish();
  return with_others(std::move(summary), run);
}

std::string end_in_summary(const std::filesystem::path& file) {
  std::ifstream stream;
  if (std::filesystem::is_regular_file(file)) {
    stream.open(file);
  }
  const auto json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return "";
  }
  const auto found = json.find("ended");
  return found == json.end() ? "finished" : found->is_string() ? found->get<std::string>() : "";
}

std::string to_json(const RunSummary& s) {
  const nlohmann::ordered_json json = {{"name", s.name},
                                       {"ended", ended_json(s.ended)},
                                       {"ranks", s.ranks},
                                       {"hosts", s.hosts},
                                       {"steps", s.steps},
                                       {"skipped_steps", s.skipped_steps},
                                       {"epochs", s.epochs},
                                       {"train_loss", s.train_loss},
                                       {"last_loss", s.last_loss},
                                       {"train_loss_by_epoch", or_null(s.train_loss_by_epoch)},
                                       {"eval_loss_by_epoch", or_null(s.eval_loss_by_epoch)},
                                       {"eval_loss", or_null(s.eval_loss)},
                                       {"em", or_null(s.em)},
                                       {"f1", or_null(s.f1)},
                                       {"eval_loss_at_start", or_null(s.eval_loss_at_start)},
                                       {"em_at_start", or_null(s.em_at_start)},
                                       {"f1_at_start", or_null(s.f1_at_start)},
                                       {"best", best_json(s.best)},
                                       {"ended_early", s.ended_early},
                                       {"runtime_seconds", s.runtime_seconds},
                                       {"train_seconds", s.train_seconds},
                                       {"train_samples_per_second", s.train_samples_per_second},
                                       {"train_steps_per_second", s.train_steps_per_second},
                                       {"train_tokens_per_second", s.train_tokens_per_second},
                                       {"mfu", or_null(s.mfu)},
                                       {"eval_samples_per_second", s.eval_samples_per_second},
                                       {"data_wait_seconds", s.data_wait_seconds},
                                       {"phase_seconds", s.phase_seconds},
                                       {"mean_peak_bytes", s.mean_peak_bytes},
                                       {"max_peak_bytes", s.max_peak_bytes},
                                       {"constant_bytes", s.constant_bytes},
                                       {"lost_records", s.lost_records}};
  return json.dump();
}

std::string to_line(const RunSummary& s) {
  const bool is_short = s.ended && *s.ended != track::End::Finished;
  // The line "done: …" reports what a finished run has done.
  const std::string steps = is_short
                                ? fmt::format(", {} step{} in {}", s.steps, s.steps == 1 ? "" : "s",
                                              track::clock_text(s.runtime_seconds))
                                : "";
  const std::string loss = s.steps > 0 && s.learned_steps == 0
                               ? "no supervised token: nothing learned"
                               : fmt::format("train_loss {:.4f}", s.train_loss);
  std::string line = fmt::format("{}{}{}, {} samples/s, {} steps/s",
                                 is_short ? track::name_of(*s.ended) + ": " : "", loss, steps,
                                 track::short_number(s.train_samples_per_second),
                                 track::short_number(s.train_steps_per_second));
  if (s.skipped_steps > 0) {
    line += fmt::format(", {} skipped", s.skipped_steps);
  }
  if (s.mfu) {
    line += ", mfu " + track::percent(*s.mfu);
  }
  if (s.eval_loss) {
    line += fmt::format(", eval_loss {:.4f}{}", *s.eval_loss, at_start(s.eval_loss_at_start, 4));
  }
  if (s.em && s.f1) {
    line += fmt::format(", EM {:.1f}{}, F1 {:.1f}{}", *s.em, at_start(s.em_at_start, 1), *s.f1,
                        at_start(s.f1_at_start, 1));
  }
  if (s.best && s.best->value != last_value(s, s.best->by)) {
    line += ", best " + s.best->text();
  }
  line += memory_text(s);
  return s.lost_records == 0
             ? line
             : line + fmt::format("; {} record{} not in the log because the disk was full",
                                  s.lost_records, s.lost_records == 1 ? "" : "s");
}

}  // namespace llm::runs
