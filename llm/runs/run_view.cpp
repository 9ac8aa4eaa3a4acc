#include "llm/runs/run_view.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <numeric>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "files/file_descriptor.h"
#include "llm/runs/plot.h"
#include "llm/runs/run_summary.h"

namespace llm::runs {

namespace {

constexpr int kPlotRows = 6;
constexpr int kLeastColumns = 40;
constexpr int kLabelColumns = 10;
constexpr std::size_t kEvaluationsShown = 5;
constexpr std::size_t kStepsOfARate = 20;

std::string name_of(RunState state) {
  return state == RunState::Running    ? "running"
         : state == RunState::Finished ? "finished"
         : state == RunState::Failed   ? "failed: the same command goes on"
                                       : "stopped: the same command goes on";
}

// As far as the log tells: none before the first step.
std::int64_t total_steps(const RunRecords& run) {
  if (run.config.train.max_steps) {
    return *run.config.train.max_steps;
  }
  const track::StepRecord& last = run.steps.back();
  return last.epochs <= 0 ? last.step
                          : std::llround(static_cast<double>(run.config.train.epochs) /
                                         last.epochs * static_cast<double>(last.step));
}

double recent_step_seconds(const RunRecords& run) {
  const std::size_t count = std::min(run.steps.size(), kStepsOfARate);
  const double seconds = std::accumulate(
      run.steps.end() - static_cast<std::ptrdiff_t>(count), run.steps.end(), 0.0,
      [](double sum, const track::StepRecord& step) { return sum + step.step_seconds; });
  return seconds / static_cast<double>(count);
}

std::string progress_bar(double share, int columns) {
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * columns);
  std::string bar;
  for (int column = 0; column < columns; ++column) {
    bar += column < full ? "\u2588" : "\u2591";
  }
  return bar;
}

std::string headline(const RunRecords& run, RunState state) {
  const std::string ranks =
      run.ranks == 0 ? ""
                     : fmt::format(", {} rank{} on {} host{}", run.ranks, run.ranks == 1 ? "" : "s",
                                   run.hosts, run.hosts == 1 ? "" : "s");
  return fmt::format("{}: {}{}; {}\n", run.name, run.config.model.path, ranks, name_of(state));
}

std::string progress(const RunRecords& run, RunState state, int columns) {
  track::StepRecord last = run.steps.back();
  last.total_steps = std::max(total_steps(run), last.step);
  const auto left = static_cast<double>(last.total_steps - last.step);
  const double share = static_cast<double>(last.step) /
                       static_cast<double>(std::max<std::int64_t>(1, last.total_steps));
  const double eta = state == RunState::Finished ? 0 : left * recent_step_seconds(run);
  return fmt::format("{} {:3.0f} %\n{}\n", progress_bar(share, columns - 7), 100 * share,
                     track::step_line(last, eta));
}

template <class Record, class Value>
std::string curve(const std::string& title, const std::vector<Record>& records, int columns,
                  const Value& value) {
  std::vector<PlotPoint> points;
  for (const Record& record : records) {
    points.push_back({static_cast<double>(record.step), value(record)});
  }
  std::string text = points.empty() ? "" : "\n" + title + "\n";
  for (const std::string& line : plot(points, columns - kLabelColumns, kPlotRows)) {
    text += line + "\n";
  }
  return text;
}

// Others have losses of their own.
std::vector<Evaluation> of_first_set(const std::vector<Evaluation>& evaluations) {
  std::vector<Evaluation> found;
  std::copy_if(evaluations.begin(), evaluations.end(), std::back_inserter(found),
               [set = first_set(evaluations)](const Evaluation& one) { return one.set == set; });
  return found;
}

// Which file it is, where there are several.
std::string of_file(const RunRecords& run) {
  const auto is_other = [](const Evaluation& one) { return one.set.index != 0; };
  const auto of_first = of_first_set(run.evaluations);
  const bool has_others = std::any_of(run.evaluations.begin(), run.evaluations.end(), is_other);
  return has_others && !of_first.empty() ? " of " + of_first.back().data : "";
}

std::string evaluations(const RunRecords& run) {
  std::string text;
  const std::size_t count = run.evaluations.size();
  for (std::size_t i = count - std::min(count, kEvaluationsShown); i < count; ++i) {
    const Evaluation& one = run.evaluations[i];
    text += fmt::format("step {}: {} loss {:.4f}", one.step, one.data, one.loss);
    text += one.em ? fmt::format(", EM {:.1f}", *one.em) : "";
    text += one.f1 ? fmt::format(", F1 {:.1f}", *one.f1) : "";
    text += "\n";
  }
  return text.empty() ? "" : "\nevaluations\n" + text;
}

}  // namespace

RunState state_of(const std::filesystem::path& folder) {
  const sherd::files::FileDescriptor lock(::open((folder / "lock").c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.get() >= 0 && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return RunState::Running;
  }
  const std::string ended = end_in_summary(folder / "summary.json");
  return ended == "finished" ? RunState::Finished
         : ended == "failed" ? RunState::Failed
                             : RunState::Stopped;
}

std::string view_of_beginning(const std::filesystem::path& folder) {
  return (folder / "").parent_path().filename().string() +
         ": running\nno step yet: data and model are being read";
}

std::string view_of(const RunRecords& run, RunState state, int columns) {
  const int width = std::max(columns, kLeastColumns);
  std::string text = headline(run, state);
  if (run.steps.empty()) {
    return text + "no step yet";
  }
  constexpr double kGib = 1 << 30;
  text += progress(run, state, width);
  text += curve("training loss", run.steps, width,
                [](const track::StepRecord& step) { return step.loss; });
  const std::vector<Evaluation> first = of_first_set(run.evaluations);
  text += curve(first.empty() ? "" : "evaluation loss" + of_file(run), first, width,
                [](const Evaluation& one) { return one.loss; });
  text += curve("tokens/s", run.steps, width,
                [](const track::StepRecord& step) { return step.tokens_per_second(); });
  text += curve("memory of the largest rank so far, GiB", run.steps, width,
                [](const track::StepRecord& step) {
                  return static_cast<double>(step.peak_rank_bytes) / kGib;
                });
  text += evaluations(run);
  if (state == RunState::Finished) {
    text += "\n" + to_line(summary_of(run)) + "\n";
  }
  text.pop_back();
  return text;
}

}  // namespace llm::runs
