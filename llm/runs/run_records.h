#pragma once
// What a run has left in its folder, read back.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/runs/evaluation_set.h"
#include "llm/track/step_record.h"
#include "llm/track/tracker.h"

namespace llm::runs {

/// An evaluation of one file.
struct Evaluation {
  std::int64_t step = 0;
  std::string data = {};  ///< the file, for people
  std::int64_t samples = 0;
  double loss = 0;
  std::optional<double> em = std::nullopt;  ///< percent; where answers were written
  std::optional<double> f1 = std::nullopt;
  double seconds = 0;
  std::string data_sha256 = {};  ///< of the file; empty: not known
  EvaluationSet set = {};
  double unix_seconds = 0;                     ///< when it ended; 0: not known
  double epochs = 0;                           ///< done when it was made; 0: not known
  std::map<std::string, double> figures = {};  ///< of the objective
};

/// What each rank took of memory at its most: from plan.json of a run that has ended.
struct RanksMemory {
  std::int64_t constant_bytes = 0;            ///< of a rank, before there is a model
  std::vector<std::int64_t> rank_peak_bytes;  ///< beside that
};

struct RunRecords {
  std::string name;  ///< of the folder; compare() adds parent folders where two runs share it
  config::RunConfig config;
  std::vector<track::StepRecord> steps;  ///< in order
  std::vector<Evaluation> evaluations;   ///< in order
  bool ended_early = false;  ///< after the last of its steps: evaluations became no better
  std::optional<track::End> ended = std::nullopt;  ///< none: it goes on, was killed, or is older
  std::string why = {};                            ///< it has failed
  /// Settings that were another value in earlier steps: "optim.lr was 0.1 until step 4".
  std::vector<std::string> changes = {};
  double checkpoint_seconds = 0;  ///< of all of them
  int ranks = 0;                  ///< of the last beginning; 0: not known
  int hosts = 0;
  std::string isa;
  std::string data_sha256;  ///< of the training data; empty: not known
  std::optional<RanksMemory> memory;
};

/// Reads config.toml, the log and plan.json of a run, which may still be running: a last line that
/// is half written is passed over. Runs of versions that wrote less lack what those did not write.
/// Not collective. Throws sherd::Error: InputMissing, naming what is not there; BadData, naming
/// file and line.
[[nodiscard]] RunRecords read_run(const std::filesystem::path& folder);

/// The same for a log of any length: gives each step to `step`, in order, instead of keeping it.
/// Memory: that of the evaluations.
[[nodiscard]] RunRecords read_run(const std::filesystem::path& folder,
                                  const std::function<void(const track::StepRecord&)>& step);

/// The evaluations in a log, in order. None in what is no regular file and cannot be read back;
/// lines that are no records are passed over.
[[nodiscard]] std::vector<Evaluation> read_evaluations(const std::filesystem::path& log);

/// Evaluations in logs of earlier versions do not say what they have read of a file. Those of the
/// entry, the file and the number of samples of `known` get its set.
void name_sets(std::span<Evaluation> evaluations, const Evaluation& known);

/// Calls one of both for each step and evaluation in a log, in order, as read_evaluations() finds
/// them: a long one is never in memory as a whole.
void for_each_record(const std::filesystem::path& log,
                     const std::function<void(const track::StepRecord&)>& step,
                     const std::function<void(const Evaluation&)>& evaluation);

/// Whether a log says, after its last step, that the run ended early.
[[nodiscard]] bool tells_early_stop(const std::filesystem::path& log);

}  // namespace llm::runs
