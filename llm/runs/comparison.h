#pragma once
// Runs side by side: `sherd compare`.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llm/runs/run_records.h"
#include "llm/runs/run_summary.h"

namespace llm::runs {

/// A run beside the first one.
struct ComparedRun {
  RunRecords records;
  RunSummary summary;
  double speedup = 1;  ///< samples/s, divided by the first run's
  /// The speed-up divided by how many times as many ranks there are; none where ranks are not
  /// known. Of the same global batch it is strong scaling, of the same batch a rank weak scaling.
  std::optional<double> scaling_efficiency = std::nullopt;
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

/// One line: comparable, differences, runs with their figures.
[[nodiscard]] std::string to_json(const Comparison& comparison);
/// A header and a line a run, commas between.
[[nodiscard]] std::string to_csv(const Comparison& comparison);
/// A table for people, a row a run, then losses by epoch, then what differs.
[[nodiscard]] std::string to_text(const Comparison& comparison);
/// A page that needs nothing else: the tables, and curves of losses, memory and a step's time.
[[nodiscard]] std::string to_html(const Comparison& comparison);

}  // namespace llm::runs
