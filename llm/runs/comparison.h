#pragma once
// Compares runs: `sherd compare`.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llm/runs/run_records.h"
#include "llm/runs/run_summary.h"

namespace llm::runs {

/// How a run's number of ranks relates to the first run's.
enum class Scaling {
  None,    ///< the same number of ranks, or unknown
  Strong,  ///< the same global batch
  Weak,    ///< the same batch per rank
  Neither  ///< neither of them
};

/// A run, compared with the first one.
struct ComparedRun {
  RunRecords records;
  RunSummary summary;
  double speedup = 1;  ///< samples/s, divided by the first run's
  /// The speed-up divided by the ratio of the numbers of ranks; none if those are unknown.
  std::optional<double> scaling_efficiency = std::nullopt;
  Scaling scaling = Scaling::None;
};

struct Comparison {
  std::vector<ComparedRun> runs;
  /// What decides a run's numbers and differs, one line each: "b: optim.lr = 0.001, a: 0.0005".
  std::vector<std::string> differences;

  [[nodiscard]] bool comparable() const { return differences.empty(); }
};

/// Not collective. Throws as read_run().
[[nodiscard]] Comparison compare(const std::vector<std::filesystem::path>& folders);

/// MiB with four digits, and whole from 1,000 on: "12.5", "61440".
[[nodiscard]] std::string mib_of(std::int64_t bytes);

/// Peak memory of the largest rank without the program's own: parameters, gradients, optimizer
/// state, activations and buffers. None if the run recorded no measurement.
[[nodiscard]] std::optional<std::int64_t> state_bytes(const RunSummary& run);

/// A table of text: titles, then the rows.
using Rows = std::vector<std::vector<std::string>>;

/// One row per run. Leaves out columns that are empty for all runs.
[[nodiscard]] Rows table_of(const Comparison& comparison);

/// Losses, one row per epoch: "1", then train and eval loss of each run. Titles are "NAME train"
/// and "NAME eval". Empty if no epoch has ended; a run without evaluations has no eval column.
[[nodiscard]] Rows losses_table_of(const Comparison& comparison);

/// Milliseconds of a mean step by phase, one row per run that timed its phases; empty if none did.
/// Leaves out phases that take less than 0.05 ms in all runs.
[[nodiscard]] Rows phases_table_of(const Comparison& comparison);

/// The settings in which the runs differ, one row per run; empty if they do not.
[[nodiscard]] Rows settings_table_of(const Comparison& comparison);

/// What the figures say, in three sentences: which runs have the same losses, how much memory the
/// model takes per rank, and how fast the runs are. Empty for a single run.
[[nodiscard]] std::vector<std::string> conclusions_of(const Comparison& comparison);

/// One line: comparable, differences, runs with their figures.
[[nodiscard]] std::string to_json(const Comparison& comparison);
/// A header and one line per run, separated by commas.
[[nodiscard]] std::string to_csv(const Comparison& comparison);
/// Tables for a terminal, at most 80 columns wide; then the conclusions and what differs.
[[nodiscard]] std::string to_text(const Comparison& comparison);
/// A self-contained page: conclusions, tables, curves, and bars of memory and of a step's phases.
[[nodiscard]] std::string to_html(const Comparison& comparison);

}  // namespace llm::runs
