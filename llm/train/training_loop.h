#pragma once
// Step after step.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "llm/inputs/loader.h"
#include "llm/train/evaluations.h"
#include "llm/train/loss_watch.h"
#include "llm/train/run.h"
#include "llm/train/run_text.h"
#include "llm/train/saves.h"
#include "llm/train/step_trace.h"
#include "llm/train/train_step.h"

namespace llm::train {

/// Takes the steps after the start of a run to the last. All methods are collective.
class TrainingLoop {
 public:
  /// Of a run whose log is open.
  explicit TrainingLoop(Run& run);

  /// Returns false where the run was asked to stop; what was learned is saved then. A checkpoint
  /// that is due comes before the evaluation of its step, so that a failure of the evaluation costs
  /// no step.
  [[nodiscard]] bool take_steps();
  /// Whether no step is left to do: the last is done, or evaluations had become no better. Not
  /// collective.
  [[nodiscard]] bool is_over() const;
  /// The best evaluation; none where there is none. Not collective.
  [[nodiscard]] const std::optional<runs::BestEvaluation>& best() const {
    return evaluations_.course().best;
  }

 private:
  // A step that was made, whose loss and norm were not read yet.
  struct PendingStep {
    LaunchedStep step;
    std::int64_t number;
    double lr;
    double data_wait_seconds;
    std::map<std::string, double> phase_seconds = {};  // on a CPU
    std::string traced = {};
    double peak_rank_bytes = 0;  // of all ranks the most
  };
  PendingStep launch(std::int64_t number);
  // Counts a step, once the one before it has been read. False: the run was stopped before it.
  bool take(PendingStep made);
  void agree_on_clocks(PendingStep& made);
  // Reads what the last step was, where that was not done yet, and records it.
  void read_pending();
  // Leaves the configuration and the beginning of this call of the run, once, where it makes a
  // step.
  void begin();
  // Saves what was learned since the last checkpoint.
  void stop();
  // Says and records why no further step is made, where the last one is not reached.
  void end_early();
  void finish();
  void tell(const PendingStep& made, const StepOutcome& outcome);
  void record(const PendingStep& made, const StepOutcome& outcome);
  void write(const track::StepRecord& record);
  void say_step(const track::StepRecord& record, const StepOutcome& outcome);
  // Counts a step that was left out for not being finite. Throws sherd::Error(NonFinite) on every
  // rank where it is one too many.
  void count_skipped(std::int64_t number, const StepOutcome& outcome);
  // Which kernels compute on a GPU, as they are chosen.
  void say_attention();
  void say_kernels();

  Run& run_;
  const inputs::RunLength& length_;
  inputs::Loader loader_;
  Evaluations evaluations_;
  Saves saves_;
  bool has_begun_ = false;              // see begin()
  std::optional<PendingStep> pending_;  // the last one; on a CPU never between steps
  LossWatch watch_;
  StepTrace trace_;
  std::optional<GraphedMicroBatches> graphs_;  // device.cuda_graphs
  std::size_t attention_said_ = 0;             // choices of kernels that have been printed
  std::string kernels_said_;                   // on a GPU: ops::kernels_text()
  std::chrono::steady_clock::time_point looked_at_folder_{};
  std::chrono::steady_clock::time_point started_;
  StepsMade made_;
};

}  // namespace llm::train
