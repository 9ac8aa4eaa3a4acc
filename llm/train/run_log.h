#pragma once
// The log of a run: a line a step, an evaluation, a checkpoint, a beginning.

#include <cstdint>
#include <string>

#include "llm/eval/evaluator.h"
#include "llm/track/jsonl_log.h"
#include "llm/track/step_record.h"

namespace llm::train {

/// Which evaluation it is: of which step and data, and whether answers were written. A file is
/// known by its digest, wherever it lies.
struct EvaluationKey {
  std::int64_t step = 0;
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
  std::string data_sha256;  ///< of the training data
};

/// Written by rank 0. Lines of steps have no `event`; all others have `event` and `step`.
class RunLog {
 public:
  /// As track::JsonlLog.
  RunLog(const std::string& path, std::int64_t steps_done)
      : path_(path), lines_(path, steps_done) {}

  void write(const track::StepRecord& record) { lines_.write(track::step_json(record)); }
  void write(const Beginning& beginning);
  /// Of a checkpoint that was saved.
  void write_checkpoint(std::int64_t step, const std::string& folder, double seconds);
  /// `data`: the file, for people.
  void write(const EvaluationKey& key, const std::string& data,
             const eval::EvaluationResult& result);
  /// Whether a line records this evaluation.
  [[nodiscard]] bool has(const EvaluationKey& key) const;
  /// As track::JsonlLog::sync.
  void sync() { lines_.sync(); }

 private:
  std::string path_;
  track::JsonlLog lines_;
};

}  // namespace llm::train
