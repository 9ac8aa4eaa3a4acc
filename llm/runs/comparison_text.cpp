#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "llm/config/words.h"
#include "llm/runs/comparison.h"
#include "llm/track/step_record.h"

namespace llm::runs {

namespace {

using Row = std::vector<std::string>;

// A column of the tables: what it is called in files and on the screen, and what it shows of a run.
struct Column {
  const char* name;
  const char* title;
  std::function<std::string(const ComparedRun&)> text;
};

std::string number(double value, const char* form = "{:.4g}") {
  return fmt::format(fmt::runtime(form), value);
}

std::string number_or_none(const std::optional<double>& value, const char* form = "{:.4g}") {
  return value ? number(*value, form) : "";
}

std::string strategy_of(const ComparedRun& run) {
  return config::word_of(run.records.config.parallel.strategy, config::strategy_words());
}

// Empty where there is none to speak of.
std::string word_of(Scaling scaling) {
  switch (scaling) {
    case Scaling::Strong:
      return "strong";
    case Scaling::Weak:
      return "weak";
    case Scaling::Neither:
      return "neither";
    case Scaling::None:
      break;
  }
  return "";
}

// Without that of what no run knows.
std::vector<Column> columns_of(const Comparison& comparison) {
  using Run = const ComparedRun&;
  std::vector<Column> columns = {
      {"name", "run", [](Run run) { return run.records.name; }},
      {"strategy", "strategy", strategy_of},
      {"ranks", "ranks", [](Run run) { return fmt::format("{}", run.summary.ranks); }},
      {"train_loss", "train loss", [](Run run) { return number(run.summary.train_loss); }},
      {"eval_loss", "eval loss", [](Run run) { return number_or_none(run.summary.eval_loss); }},
      {"em", "EM", [](Run run) { return number_or_none(run.summary.em, "{:.1f}"); }},
      {"f1", "F1", [](Run run) { return number_or_none(run.summary.f1, "{:.1f}"); }},
      {"runtime_seconds", "runtime s", [](Run run) { return number(run.summary.runtime_seconds); }},
      {"train_samples_per_second", "samples/s",
       [](Run run) { return number(run.summary.train_samples_per_second); }},
      {"train_steps_per_second", "steps/s",
       [](Run run) { return number(run.summary.train_steps_per_second); }},
      {"mfu", "MFU", [](Run run) { return number_or_none(run.summary.mfu, "{:.3f}"); }},
      {"eval_samples_per_second", "eval samples/s",
       [](Run run) { return number(run.summary.eval_samples_per_second); }},
      {"mean_peak_mib", "mean peak MiB",
       [](Run run) { return number(static_cast<double>(run.summary.mean_peak_bytes >> 20)); }},
      {"max_peak_mib", "max peak MiB",
       [](Run run) { return number(static_cast<double>(run.summary.max_peak_bytes >> 20)); }},
      {"speedup", "speed-up", [](Run run) { return number(run.speedup, "{:.2f}"); }},
      {"scaling_efficiency", "efficiency",
       [](Run run) { return number_or_none(run.scaling_efficiency, "{:.2f}"); }},
      {"scaling", "scaling", [](Run run) { return word_of(run.scaling); }},
  };
  // Some know their utilization, and some have other ranks than the first.
  std::erase_if(columns, [&](const Column& column) {
    const std::string_view name = column.name;
    return (name == "mfu" || name == "scaling") &&
           std::all_of(comparison.runs.begin(), comparison.runs.end(),
                       [&](Run run) { return column.text(run).empty(); });
  });
  return columns;
}

// Columns as wide as they need, the first to the left, numbers to the right.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i) {
      line += fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::size_t epochs_of(const Comparison& comparison) {
  std::size_t most = 0;
  for (const ComparedRun& run : comparison.runs) {
    most = std::max(
        {most, run.summary.train_loss_by_epoch.size(), run.summary.eval_loss_by_epoch.size()});
  }
  return most;
}

Row losses_row(const std::string& name, const std::vector<std::optional<double>>& losses,
               std::size_t epochs) {
  Row row = {name};
  for (std::size_t i = 0; i < epochs; ++i) {
    row.push_back(i < losses.size() ? number_or_none(losses[i]) : "");
  }
  return row;
}

// As CSV has it: quoted where it holds what separates.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + "\"";
}

}  // namespace

std::string to_json(const Comparison& comparison) {
  nlohmann::ordered_json line = {{"comparable", comparison.comparable()},
                                 {"differences", comparison.differences},
                                 {"runs", nlohmann::ordered_json::array()}};
  for (const ComparedRun& run : comparison.runs) {
    auto json = nlohmann::ordered_json::parse(to_json(run.summary));
    json["strategy"] = strategy_of(run);
    json["speedup"] = run.speedup;
    json["scaling_efficiency"] = run.scaling_efficiency
                                     ? nlohmann::ordered_json(*run.scaling_efficiency)
                                     : nlohmann::ordered_json(nullptr);
    json["scaling"] = run.scaling == Scaling::None ? nlohmann::ordered_json(nullptr)
                                                   : nlohmann::ordered_json(word_of(run.scaling));
    line["runs"].push_back(std::move(json));
  }
  return line.dump();
}

std::string to_csv(const Comparison& comparison) {
  const std::vector<Column> columns = columns_of(comparison);
  std::string text;
  for (const Column& column : columns) {
    text += (text.empty() ? "" : ",") + std::string(column.name);
  }
  for (const ComparedRun& run : comparison.runs) {
    std::string line;
    for (const Column& column : columns) {
      line += (line.empty() ? "" : ",") + csv_field(column.text(run));
    }
    text += "\n" + line;
  }
  return text;
}

std::vector<Row> table_of(const Comparison& comparison) {
  const std::vector<Column> columns = columns_of(comparison);
  std::vector<Row> rows(1);
  for (const Column& column : columns) {
    rows[0].push_back(column.title);
  }
  for (const ComparedRun& run : comparison.runs) {
    Row& row = rows.emplace_back();
    for (const Column& column : columns) {
      row.push_back(column.text(run));
    }
  }
  return rows;
}

std::vector<Row> losses_table_of(const Comparison& comparison) {
  const std::size_t epochs = epochs_of(comparison);
  if (epochs == 0) {
    return {};
  }
  std::vector<Row> rows = {{"loss by epoch"}};
  for (std::size_t i = 1; i <= epochs; ++i) {
    rows[0].push_back(fmt::format("{}", i));
  }
  for (const ComparedRun& run : comparison.runs) {
    rows.push_back(
        losses_row(run.records.name + " train", run.summary.train_loss_by_epoch, epochs));
    if (!run.summary.eval_loss_by_epoch.empty()) {
      rows.push_back(
          losses_row(run.records.name + " eval", run.summary.eval_loss_by_epoch, epochs));
    }
  }
  return rows;
}

std::vector<Row> phases_table_of(const Comparison& comparison) {
  // In the order of a step; what a run has not timed is in none of them.
  constexpr std::array kPhases = {"gather", "forward", "backward",  "reduce",
                                  "clip",   "wait",    "optimizer", "other"};
  std::vector<Row> rows;
  for (const ComparedRun& run : comparison.runs) {
    const RunSummary& summary = run.summary;
    if (summary.phase_seconds.empty() || summary.steps == 0) {
      continue;
    }
    if (rows.empty()) {
      rows.push_back({"a step, ms", "all", "data"});
      rows.back().insert(rows.back().end(), kPhases.begin(), kPhases.end());
    }
    const auto cell = [&](double seconds) {
      return fmt::format("{:.1f}", 1e3 * seconds / static_cast<double>(summary.steps));
    };
    Row& row = rows.emplace_back(
        Row{run.records.name, cell(summary.train_seconds), cell(summary.data_wait_seconds)});
    for (const char* phase : kPhases) {
      const auto found = summary.phase_seconds.find(phase);
      row.push_back(found == summary.phase_seconds.end() ? "" : cell(found->second));
    }
  }
  return rows;
}

std::string to_text(const Comparison& comparison) {
  std::string text = aligned(table_of(comparison));
  if (const std::vector<Row> losses = losses_table_of(comparison); !losses.empty()) {
    text += "\n" + aligned(losses);
  }
  if (const std::vector<Row> phases = phases_table_of(comparison); !phases.empty()) {
    text += "\n" + aligned(phases);
  }
  for (const std::string& difference : comparison.differences) {
    text += "\nnot comparable: " + difference;
  }
  return text;
}

}  // namespace llm::runs
