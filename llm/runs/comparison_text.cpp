#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "llm/config/fields.h"
#include "llm/config/words.h"
#include "llm/runs/comparison.h"
#include "llm/runs/text_table.h"
#include "llm/track/step_record.h"

namespace llm::runs {

namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kTerminalWidth = 80;
constexpr std::size_t kLongestName = 26;  // with any column after it, it fits into a line

// A column of the tables: its name in CSV, its title, and its text for a run.
struct Column {
  const char* name;
  const char* title;
  std::function<std::string(const ComparedRun&)> text;
};

constexpr const char* kFourDigits = "{:.4g}";
constexpr double kWholeFrom = 1000;  // four digits of larger numbers would need an exponent

std::string number(double value, const char* form = kFourDigits) {
  return form == kFourDigits && value >= kWholeFrom ? fmt::format("{:.0f}", value)
                                                    : fmt::format(fmt::runtime(form), value);
}

std::string number_or_none(const std::optional<double>& value, const char* form = kFourDigits) {
  return value ? number(*value, form) : "";
}

std::string strategy_of(const ComparedRun& run) {
  return config::word_of(run.records.config.parallel.strategy, config::strategy_words());
}

// Empty for Scaling::None.
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

// "0": no samples were evaluated.
bool is_empty(const Column& column, const Comparison& comparison) {
  return std::all_of(comparison.runs.begin(), comparison.runs.end(), [&](const ComparedRun& run) {
    const std::string text = column.text(run);
    return text.empty() || (column.name == std::string("eval_samples_per_second") && text == "0");
  });
}

// In the order of the CSV, whose readers may count: new columns are appended.
std::vector<Column> columns_of() {
  using Run = const ComparedRun&;
  return {
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
      {"global_batch", "global batch",
       [](Run run) { return fmt::format("{}", run.records.config.train.global_batch); }},
      {"steps", "steps", [](Run run) { return fmt::format("{}", run.summary.steps); }},
      {"state_mib", "state MiB",
       [](Run run) {
         const auto bytes = state_bytes(run.summary);
         return bytes ? mib_of(*bytes) : "";
       }},
      {"program_mib", "program MiB",
       [](Run run) {
         return run.summary.constant_bytes > 0 ? mib_of(run.summary.constant_bytes) : "";
       }},
  };
}

// For people, in blocks: what was trained; memory and speed; the rest.
std::vector<std::vector<Column>> blocks_of_table(const Comparison& comparison) {
  const std::vector<std::vector<std::string_view>> order = {
      {"name", "strategy", "ranks", "global_batch", "steps", "train_loss", "eval_loss", "em", "f1"},
      {"state_mib", "program_mib", "mean_peak_mib", "max_peak_mib", "train_samples_per_second",
       "speedup", "runtime_seconds"},
      {"train_steps_per_second", "mfu", "eval_samples_per_second", "scaling_efficiency",
       "scaling"}};
  const std::vector<Column> all = columns_of();
  std::vector<std::vector<Column>> blocks;
  for (const auto& names : order) {
    auto& block = blocks.emplace_back();
    for (const std::string_view name : names) {
      const auto column =
          std::find_if(all.begin(), all.end(), [&](const Column& one) { return one.name == name; });
      if (!is_empty(*column, comparison)) {
        block.push_back(*column);
      }
    }
  }
  return blocks;
}

Rows rows_of(const Comparison& comparison, const std::vector<Column>& columns) {
  Rows rows(1);
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

std::size_t epochs_of(const Comparison& comparison) {
  std::size_t most = 0;
  for (const ComparedRun& run : comparison.runs) {
    most = std::max(
        {most, run.summary.train_loss_by_epoch.size(), run.summary.eval_loss_by_epoch.size()});
  }
  return most;
}

std::string loss_at(const std::vector<std::optional<double>>& losses, std::size_t epoch) {
  return epoch < losses.size() ? number_or_none(losses[epoch]) : "";
}

// As many phases as take time in some run.
void remove_idle_phases(std::vector<Row>& rows) {
  for (std::size_t column = rows[0].size() - 1; column > 1; --column) {  // after name and all
    const bool idle = std::all_of(rows.begin() + 1, rows.end(), [&](const Row& row) {
      return row[column].empty() || row[column] == "0.0";
    });
    if (idle) {
      for (Row& row : rows) {
        row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
      }
    }
  }
}

// By the runs' names: the same, or numbers if one is too long for a table.
std::map<std::string, std::string> names_in_text(const Comparison& comparison) {
  std::map<std::string, std::string> names;
  bool fits = true;
  for (const ComparedRun& run : comparison.runs) {
    names[run.records.name] = run.records.name;
    fits = fits && characters_in(run.records.name) <= kLongestName;
  }
  for (std::size_t i = 0; i < comparison.runs.size() && !fits; ++i) {
    names[comparison.runs[i].records.name] = fmt::format("run {}", i + 1);
  }
  return names;
}

// One column per run, with its train and its eval loss.
std::string losses_text(const Comparison& comparison,
                        const std::map<std::string, std::string>& names) {
  constexpr const char* kPair = "{:>6} {:>6}";
  const std::size_t epochs = epochs_of(comparison);
  std::vector<Row> rows(epochs + 1, Row(1));
  rows[0][0] = "epoch";
  for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
    rows[epoch + 1][0] = fmt::format("{}", epoch + 1);
  }
  for (const ComparedRun& run : comparison.runs) {
    const RunSummary& summary = run.summary;
    const bool evaluated = !summary.eval_loss_by_epoch.empty();
    rows[0].push_back(names.at(run.records.name) + "\n" +
                      (evaluated ? fmt::format(kPair, "train", "eval") : "train"));
    for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
      const std::string train = loss_at(summary.train_loss_by_epoch, epoch);
      rows[epoch + 1].push_back(
          evaluated ? fmt::format(kPair, train, loss_at(summary.eval_loss_by_epoch, epoch))
                    : train);
    }
  }
  return in_blocks(rows, kTerminalWidth);
}

// One row per run, whose names become `names`. Each word of a title is a line.
std::string runs_text(Rows rows, const std::map<std::string, std::string>& names) {
  for (std::string& title : rows[0]) {
    std::replace(title.begin(), title.end(), ' ', '\n');
  }
  for (std::size_t i = 1; i < rows.size(); ++i) {
    rows[i][0] = names.at(rows[i][0]);
  }
  return in_blocks(rows, kTerminalWidth);
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
                                 {"conclusions", conclusions_of(comparison)},
                                 {"runs", nlohmann::ordered_json::array()}};
  for (const ComparedRun& run : comparison.runs) {
    auto json = nlohmann::ordered_json::parse(to_json(run.summary));
    json["strategy"] = strategy_of(run);
    json["global_batch"] = run.records.config.train.global_batch;
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
  std::vector<Column> columns = columns_of();
  std::erase_if(columns, [&](const Column& column) {
    const std::string_view name = column.name;
    return (name == "mfu" || name == "scaling") && is_empty(column, comparison);
  });
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

Rows table_of(const Comparison& comparison) {
  std::vector<Column> columns;
  for (const std::vector<Column>& block : blocks_of_table(comparison)) {
    columns.insert(columns.end(), block.begin(), block.end());
  }
  return rows_of(comparison, columns);
}

Rows losses_table_of(const Comparison& comparison) {
  const std::size_t epochs = epochs_of(comparison);
  if (epochs == 0) {
    return {};
  }
  Rows rows(epochs + 1);
  rows[0].emplace_back("epoch");
  for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
    rows[epoch + 1].push_back(fmt::format("{}", epoch + 1));
  }
  const auto add = [&](const std::string& title, const std::vector<std::optional<double>>& losses) {
    rows[0].push_back(title);
    for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
      rows[epoch + 1].push_back(loss_at(losses, epoch));
    }
  };
  for (const ComparedRun& run : comparison.runs) {
    add(run.records.name + " train", run.summary.train_loss_by_epoch);
    if (!run.summary.eval_loss_by_epoch.empty()) {
      add(run.records.name + " eval", run.summary.eval_loss_by_epoch);
    }
  }
  return rows;
}

Rows phases_table_of(const Comparison& comparison) {
  // In the order of a step.
  constexpr std::array kPhases = {"gather", "forward", "backward",  "reduce",
                                  "clip",   "wait",    "optimizer", "other"};
  std::vector<Row> rows;
  for (const ComparedRun& run : comparison.runs) {
    const RunSummary& summary = run.summary;
    if (summary.phase_seconds.empty() || summary.steps == 0) {
      continue;
    }
    if (rows.empty()) {
      rows.push_back({"run", "all", "data"});
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
  if (!rows.empty()) {
    remove_idle_phases(rows);
  }
  return rows;
}

Rows settings_table_of(const Comparison& comparison) {
  std::vector<std::string> keys = {"ranks", "hosts"};  // then in the order of a file
  std::vector<std::map<std::string, std::string>> settings;
  for (const ComparedRun& run : comparison.runs) {
    auto& its = settings.emplace_back();
    its["ranks"] = fmt::format("{}", run.records.ranks);
    its["hosts"] = fmt::format("{}", run.records.hosts);
    config::RunConfig config = run.records.config;
    for (const config::Leaf& leaf : config::leaves(config)) {
      its[leaf.key] = leaf.text();
      if (leaf.key != "train.output" &&
          std::find(keys.begin(), keys.end(), leaf.key) == keys.end()) {
        keys.push_back(leaf.key);
      }
    }
  }
  std::erase_if(keys, [&](const std::string& key) {
    return std::all_of(settings.begin(), settings.end(),
                       [&](auto& its) { return its[key] == settings.front()[key]; });
  });
  if (keys.empty()) {
    return {};
  }
  Rows rows = {{"run"}};
  rows[0].insert(rows[0].end(), keys.begin(), keys.end());
  for (std::size_t i = 0; i < settings.size(); ++i) {
    Row& row = rows.emplace_back(Row{comparison.runs[i].records.name});
    for (const std::string& key : keys) {
      row.push_back(settings[i][key]);
    }
  }
  return rows;
}

std::string to_text(const Comparison& comparison) {
  const std::map<std::string, std::string> names = names_in_text(comparison);
  std::string text;
  for (const ComparedRun& run : comparison.runs) {
    if (const std::string& shown = names.at(run.records.name); shown != run.records.name) {
      text += shown + ": " + run.records.name + "\n";
    }
  }
  const auto blocks = blocks_of_table(comparison);
  for (std::vector<Column> block : blocks) {
    const Column& name = blocks.front().front();  // of the run: each block begins with it
    if (block.front().name != name.name) {
      block.insert(block.begin(), name);
      text += "\n";
    }
    text += runs_text(rows_of(comparison, block), names);
  }
  if (epochs_of(comparison) > 0) {
    text += "\nloss by epoch\n" + losses_text(comparison, names);
  }
  if (const Rows phases = phases_table_of(comparison); !phases.empty()) {
    text += "\ntime of a step, ms\n" + runs_text(phases, names);
  }
  for (const std::string& conclusion : conclusions_of(comparison)) {
    text += "\n" + wrapped(conclusion, kTerminalWidth, 2);
  }
  for (const std::string& difference : comparison.differences) {
    text += "\n" + wrapped("not comparable: " + difference, kTerminalWidth, 2);
  }
  text.pop_back();  // whoever prints it ends the line
  return text;
}

}  // namespace llm::runs
