#pragma once
// The figures of a run: what its last line, summary.json and comparisons show.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llm/runs/best_evaluation.h"
#include "llm/runs/run_records.h"

namespace llm::runs {

/// Figures of all sessions of a run together. Names as in Hugging Face's Trainer where it has them.
struct RunSummary {
  std::string name;
  std::optional<track::End> ended;  ///< none: it goes on, was killed, or is of an earlier version
  int ranks = 0;                    ///< 0: not known
  int hosts = 0;
  std::int64_t steps = 0;
  std::int64_t skipped_steps = 0;  ///< of them, left out since they were not finite
  double epochs = 0;
  double train_loss = 0;           ///< mean over the steps that have one
  std::int64_t learned_steps = 0;  ///< those with supervised tokens, without those left out
  double last_loss = 0;            ///< of the last of these; NaN if there is none
  /// From the first epoch on; none where an epoch has none.
  std::vector<std::optional<double>> train_loss_by_epoch;
  std::vector<std::optional<double>> eval_loss_by_epoch;  ///< the last of each
  std::optional<double> eval_loss;                        ///< the last
  std::optional<double> em;                               ///< of the last that wrote answers
  std::optional<double> f1;
  std::optional<double> eval_loss_at_start;  ///< before the first step
  std::optional<double> em_at_start;
  std::optional<double> f1_at_start;
  std::optional<BestEvaluation> best;
  bool ended_early = false;    ///< since evaluations became no better
  double runtime_seconds = 0;  ///< steps, evaluations and checkpoints
  double train_seconds = 0;    ///< steps alone
  double train_samples_per_second = 0;
  double train_steps_per_second = 0;
  double train_tokens_per_second = 0;
  std::optional<double> mfu;           ///< mean of the steps that tell it, by their time
  double eval_samples_per_second = 0;  ///< 0: nothing was evaluated
  double data_wait_seconds = 0;
  std::map<std::string, double> phase_seconds;  ///< of all steps, on the first rank's thread
  std::int64_t mean_peak_bytes = 0;             ///< over the ranks: what each took at its most
  std::int64_t max_peak_bytes = 0;
  std::int64_t constant_bytes = 0;  ///< what of it a rank takes without a model; 0: not known
  /// Of the last session, that are not in the log since its disk was full.
  std::int64_t lost_records = 0;
};

/// Of several evaluated files the first one's figures count.
[[nodiscard]] RunSummary summary_of(const RunRecords& run);

/// The same of a run's folder, whose log may have any length: read_run() with no step kept.
[[nodiscard]] RunSummary summary_of(const std::filesystem::path& folder);

/// "finished", "stopped" or "failed", as a summary.json says it; of earlier versions, which wrote
/// none of other runs, "finished"; empty where there is none, or it cannot be read.
[[nodiscard]] std::string end_in_summary(const std::filesystem::path& file);

/// One JSON object, as in summary.json.
[[nodiscard]] std::string to_json(const RunSummary& summary);

/// Of a run that did not finish "stopped: " or "failed: " before it.
/// "train_loss 3.99, 12 steps in 00:05:33, 7.5 samples/s, 1.9 steps/s, EM 30.0, F1 46.2, memory 1.2
/// GiB a rank, 1.3 GiB at most".
[[nodiscard]] std::string to_line(const RunSummary& summary);

}  // namespace llm::runs
