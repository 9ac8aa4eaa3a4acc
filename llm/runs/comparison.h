#pragma once
// Runs side by side: `sherd compare`.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llm/runs/run_records.h"
#include "llm/runs/run_summary.h"

namespace llm::runs {

/// What more or fewer ranks than the first run's stand for.
enum class Scaling {
  None,    ///< as many ranks, or not known how many
  Strong,  ///< of the same global batch
  Weak,    ///< of the same batch a rank
  Neither  ///< of another one
};

/// A run beside the first one.
struct ComparedRun {
  RunRecords records;
  RunSummary summary;
  double speedup = 1;  ///< samples/s, divided by the first run's
  /// The speed-up divided by how many times as many ranks there are; none where ranks are not
  /// known.
  std::optional<double> scaling_efficiency = std::nullopt;
  Scaling scaling = Scaling::None;
};

struct Comparison {
  std::vector<ComparedRun> runs;
  /// What decides a run's numbers and is not the same, a line each: "b: optim.lr = 0.001, a:
  /// 0.0005".
  std::vector<std::string> differences;

  [[nodiscard]] bool comparable() const { return differences.empty(); }
};

/// Not collective. Throws as read_run().
[[nodiscard]] Comparison compare(const std::vector<std::filesystem::path>& folders);

/// Titles, then a row a run.
[[nodiscard]] std::vector<std::vector<std::string>> table_of(const Comparison& comparison);

/// Losses by epoch: titles, then a row for training and one for the evaluation of each run; no rows
/// where no epoch has ended.
[[nodiscard]] std::vector<std::vector<std::string>> losses_table_of(const Comparison& comparison);

/// Where the time of a mean step went, in milliseconds: titles, then a row for each run that has
/// timed its phases; no rows where none has.
[[nodiscard]] std::vector<std::vector<std::string>> phases_table_of(const Comparison& comparison);

/// One line: comparable, differences, runs with their figures.
[[nodiscard]] std::string to_json(const Comparison& comparison);
/// A header and a line a run, commas between.
[[nodiscard]] std::string to_csv(const Comparison& comparison);
/// Tables for people, a row a run: figures, losses by epoch, where a step's time went; then what
/// differs.
[[nodiscard]] std::string to_text(const Comparison& comparison);
/// A page that needs nothing else: the tables, and curves of losses, memory and a step's time.
[[nodiscard]] std::string to_html(const Comparison& comparison);

}  // namespace llm::runs
