#include "llm/runs/run_view.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "files/file_descriptor.h"
#include "files/wrapped_text.h"
#include "llm/runs/plot.h"
#include "llm/runs/run_summary.h"

namespace llm::runs {

namespace {

constexpr int kPlotRows = 6;
constexpr int kLeastColumns = 40;
constexpr int kLabelColumns = 10;
constexpr int kEvaluationsShown = 5;
constexpr std::size_t kStepsOfARate = 20;

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string text_of(RunState state, const std::string& why) {
  return state == RunState::Running    ? "running"
         : state == RunState::Finished ? "finished"
         : state == RunState::Failed   ? "failed" + (why.empty() ? "" : ": " + first_line(why))
                                       : "stopped: the same command resumes";
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

// Columns that are filled.
struct Widths {
  int curves = 0;
  int text = 0;
};

std::string headline(const RunRecords& run, RunState state) {
  const std::string ranks =
      run.ranks == 0 ? ""
                     : fmt::format(", {} rank{} on {} host{}", run.ranks, run.ranks == 1 ? "" : "s",
                                   run.hosts, run.hosts == 1 ? "" : "s");
  return fmt::format("{}: {}{}; {}", run.name, run.config.model.path, ranks,
                     text_of(state, run.why));
}

std::string progress(const RunRecords& run, RunState state, const Widths& widths) {
  track::StepRecord last = run.steps.back();
  last.total_steps = std::max(total_steps(run), last.step);
  const auto left = static_cast<double>(last.total_steps - last.step);
  const double share = static_cast<double>(last.step) /
                       static_cast<double>(std::max<std::int64_t>(1, last.total_steps));
  const double eta = state == RunState::Finished ? 0 : left * recent_step_seconds(run);
  return fmt::format("{} {:3.0f} %\n{}\n", progress_bar(share, widths.curves - 7), 100 * share,
                     sherd::files::wrapped(track::step_line(last, eta), widths.text, 0, " |"));
}

struct ShownCurve {
  std::string title;
  std::vector<PlotPoint> points;
};

template <class Record, class Value>
ShownCurve curve(const std::string& title, const std::vector<Record>& records, const Value& value) {
  ShownCurve found{title, {}};
  for (const Record& record : records) {
    if (const double y = value(record); std::isfinite(y)) {
      found.points.push_back({static_cast<double>(record.step), y});
    }
  }
  return found;
}

// Empty if there is no point to show.
std::string drawn(const ShownCurve& curve, int columns, int rows) {
  const int width = columns - kLabelColumns;
  const std::vector<std::string> lines = plot(curve.points, width, rows);
  std::string text = lines.empty() ? "" : curve.title + "\n";
  for (const std::string& line : lines) {
    text += line + "\n";
  }
  const auto step = [](const PlotPoint& point) { return fmt::format("step {:.0f}", point.x); };
  return lines.empty()
             ? ""
             : text + plot_axis(step(curve.points.front()), step(curve.points.back()), width) +
                   "\n";
}

// Others have losses of their own.
std::vector<Evaluation> of_first_set(const std::vector<Evaluation>& evaluations) {
  std::vector<Evaluation> found;
  std::copy_if(evaluations.begin(), evaluations.end(), std::back_inserter(found),
               [set = first_set(evaluations)](const Evaluation& one) { return one.set == set; });
  return found;
}

// The name of the file, if there are several.
std::string of_file(const RunRecords& run) {
  const auto is_other = [](const Evaluation& one) { return one.set.index != 0; };
  const auto of_first = of_first_set(run.evaluations);
  const bool has_others = std::any_of(run.evaluations.begin(), run.evaluations.end(), is_other);
  return has_others && !of_first.empty() ? " of " + of_first.back().data : "";
}

std::string evaluations(const RunRecords& run, int columns, int most) {
  std::string text;
  const std::size_t count = run.evaluations.size();
  for (std::size_t i = count - std::min(count, static_cast<std::size_t>(most)); i < count; ++i) {
    const Evaluation& one = run.evaluations[i];
    std::string line = fmt::format("step {}: {} loss {:.4f}", one.step, one.data, one.loss);
    line += one.em ? fmt::format(", EM {:.1f}", *one.em) : "";
    line += one.f1 ? fmt::format(", F1 {:.1f}", *one.f1) : "";
    text += sherd::files::wrapped(line, columns) + "\n";
  }
  return text.empty() ? "" : "evaluations\n" + text;
}

// The most important first.
std::vector<ShownCurve> curves_of(const RunRecords& run) {
  constexpr double kGib = 1 << 30;
  const std::vector<Evaluation> first = of_first_set(run.evaluations);
  return {curve("training loss", run.steps, [](const auto& step) { return step.loss; }),
          curve("evaluation loss" + of_file(run), first, [](const auto& one) { return one.loss; }),
          curve("tokens/s", run.steps, [](const auto& step) { return step.tokens_per_second(); }),
          curve("peak memory, largest rank, GiB", run.steps,
                [](const auto& step) { return static_cast<double>(step.peak_rank_bytes) / kGib; })};
}

// How much of a run is shown.
struct Layout {
  bool is_spaced = true;  // an empty line before each part
  int curves = 4;
  int rows = kPlotRows;  // of a curve
  int evaluations = kEvaluationsShown;
};

// From the largest to the smallest.
std::vector<Layout> layouts() {
  constexpr int kLeastRows = 3;
  std::vector<Layout> all = {{}};
  for (int curves = 4; curves > 0; --curves) {
    for (const int evaluations : {kEvaluationsShown, 1}) {
      for (int rows = kPlotRows; rows >= kLeastRows; --rows) {
        all.push_back({false, curves, rows, evaluations});
      }
    }
  }
  all.push_back({false, 1, 1, 1});
  all.push_back({false, 0, 0, 1});
  all.push_back({false, 0, 0, 0});
  return all;
}

std::string laid_out(const RunRecords& run, const std::vector<ShownCurve>& curves, RunState state,
                     const Widths& widths, const Layout& layout) {
  std::vector<std::string> parts;
  int left = layout.curves;
  for (const ShownCurve& curve : curves) {
    if (const std::string text = left > 0 ? drawn(curve, widths.curves, layout.rows) : "";
        !text.empty()) {
      parts.push_back(text);
      --left;
    }
  }
  parts.push_back(evaluations(run, widths.text, layout.evaluations));
  if (state == RunState::Finished) {
    parts.push_back(sherd::files::wrapped(to_line(summary_of(run)), widths.text, 0, ",") + "\n");
  }
  std::string text = sherd::files::wrapped(headline(run, state), widths.text) + "\n" +
                     progress(run, state, widths);
  for (const std::string& part : parts) {
    text += (layout.is_spaced && !part.empty() ? "\n" : "") + part;
  }
  text.pop_back();
  return text;
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
         ": running\nno step yet: loading data and model";
}

std::string view_of(const RunRecords& run, RunState state, const Screen& screen) {
  const int width = std::max(screen.columns, kLeastColumns);
  // Of a file, lines are read by programs too.
  const Widths widths{width, screen.rows ? width : std::numeric_limits<int>::max()};
  if (run.steps.empty()) {
    return sherd::files::wrapped(headline(run, state), widths.text) + "\nno step yet";
  }
  const std::vector<ShownCurve> curves = curves_of(run);
  std::string text;
  for (const Layout& layout : layouts()) {
    text = laid_out(run, curves, state, widths, layout);
    // Below the last line is the cursor's.
    if (!screen.rows || std::count(text.begin(), text.end(), '\n') + 2 <= *screen.rows) {
      break;
    }
  }
  return text;
}

}  // namespace llm::runs
