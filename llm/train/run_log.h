#pragma once
// The log of a run: a line a step, an evaluation, a checkpoint, a beginning; figures go to its
// trackers too.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llm/eval/evaluator.h"
#include "llm/runs/best_evaluation.h"
#include "llm/runs/run_records.h"
#include "llm/track/jsonl_log.h"
#include "llm/track/step_record.h"
#include "llm/track/trackers.h"

namespace llm::train {

/// Which evaluation it is: of which step and data, and whether answers were written. A file is
/// known by its digest, wherever it lies.
struct EvaluationKey {
  std::int64_t step = 0;
  runs::EvaluationSet set;
  std::string data_sha256;
  std::int64_t samples = 0;
  bool generated = false;
};

/// What a run, or its continuation, begins with.
struct Beginning {
  std::int64_t step = 0;  ///< that is done
  int ranks = 1;
  int hosts = 1;
  int threads = 1;  ///< of a rank
  std::string transport;
  std::string isa;
  std::string data_sha256;                           ///< of the training data
  std::optional<double> peak_operations_per_second;  ///< of a rank: what `mfu` is a share of
};

/// Written by rank 0. Lines of steps have no `event`; all others have `event` and `step`.
class RunLog {
 public:
  /// As track::JsonlLog. `trackers` must outlive it; `eval_paths` are those of data.eval.
  RunLog(const std::string& path, std::int64_t steps_done, track::Trackers& trackers,
         const std::vector<std::string>& eval_paths, track::JsonlLog::Warn warn = {});

  void write(const track::StepRecord& record);
  void write(const Beginning& beginning);
  /// Of settings that are not those of the steps before.
  void write_changes(std::int64_t step, const std::vector<config::Difference>& changes);
  /// Of a checkpoint that was saved.
  void write_checkpoint(std::int64_t step, const std::string& folder, double seconds);
  /// `data`: the file, for people; `predictions`: the file of the answers, empty for none.
  void write(const EvaluationKey& key, const std::string& data,
             const eval::EvaluationResult& result, const std::string& predictions);
  /// Of an evaluation that is the best so far.
  void write(const runs::BestEvaluation& best);
  /// Of an end before the last step, since evaluations became no better.
  void write_early_stop(std::int64_t step, const runs::EvaluationCourse& course);
  /// Of the end of this call of the run, where it has written anything. `why`: of one that failed.
  void write_end(std::int64_t step, track::End how, const std::string& why);
  /// Those in this log, of earlier beginnings too, also of versions that did not name their set;
  /// `first`: an evaluation of the first set as it is now.
  [[nodiscard]] std::vector<runs::Evaluation> evaluations(const EvaluationKey& first) const;
  /// Whether it says, after its last step, that the run ended early.
  [[nodiscard]] bool tells_early_stop() const { return runs::tells_early_stop(path_); }
  /// Whether a line records this evaluation.
  [[nodiscard]] bool has(const EvaluationKey& key) const;
  /// As track::JsonlLog::sync.
  void sync() { lines_.sync(); }
  /// As track::JsonlLog::missing_records.
  [[nodiscard]] std::int64_t missing_records() const { return lines_.missing_records(); }

 private:
  void write_line(const std::string& json);

  std::string path_;
  track::JsonlLog lines_;
  track::Trackers& trackers_;
  std::vector<std::string> eval_names_;  // in trackers
  bool has_written_ = false;
};

}  // namespace llm::train
