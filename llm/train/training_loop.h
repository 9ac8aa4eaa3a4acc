#pragma once
// Step after step, with checkpoints and evaluations in between.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/data/loader.h"
#include "llm/model/causal_lm.h"
#include "llm/text/tokenizer.h"
#include "llm/track/progress.h"
#include "llm/train/best_so_far.h"
#include "llm/train/cadence.h"
#include "llm/train/checkpoints.h"
#include "llm/train/flops_utilization.h"
#include "llm/train/loss_watch.h"
#include "llm/train/output_lock.h"
#include "llm/train/resume.h"
#include "llm/train/run_data.h"
#include "llm/train/run_log.h"
#include "llm/train/run_note.h"
#include "llm/train/run_text.h"
#include "llm/train/step_trace.h"
#include "llm/train/train_step.h"
#include "llm/train/trainer.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"

namespace llm::train {

/// What a run has built before its first step.
struct Prepared {
  const config::RunConfig& config;
  const RunData& data;
  const text::Tokenizer& tokenizer;
  data::BatchShape shape;
  RunNote note;               ///< of this run, at its start
  OutputLock* lock;           ///< on rank 0, else null
  track::Trackers* trackers;  ///< the same
  track::Progress* progress;  ///< the same
  Candidate start;            ///< the checkpoint it continues from
  FlopsUtilization mfu = {};  ///< how it is taken, on rank 0
};

/// Trains from the step after the start to the last. All methods are collective.
class TrainingLoop {
 public:
  /// The log is opened here: a resumed run keeps its lines up to the start.
  /// `scaler` is null where the loss is not scaled.
  TrainingLoop(Prepared prepared, sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
               sherd::GradScaler* scaler, const RunHooks& hooks);

  /// A checkpoint that is due comes before the evaluation of its step, so that a
  /// failure of the evaluation costs no step.
  RunOutcome run();
  /// Records how this call of the run ended; `why`: of one that failed. Not collective: rank 0 does
  /// it.
  void record_end(track::End how, const std::string& why = "");
  /// As track::JsonlLog::missing_records, on rank 0.
  [[nodiscard]] std::int64_t missing_records() const { return log_->missing_records(); }
  /// What the run has reached. Not collective.
  [[nodiscard]] const RunOutcome& outcome() const { return outcome_; }
  /// Whether no step is left to do: the last is done, or evaluations had become no better. Not
  /// collective.
  [[nodiscard]] bool is_over() const;
  /// The best evaluation; none where there is none. Not collective.
  [[nodiscard]] const std::optional<runs::BestEvaluation>& best() const {
    return best_.course().best;
  }

 private:
  // A step that was made, whose loss and norm were not read yet.
  struct Unread {
    LaunchedStep step;
    std::int64_t number;
    double lr;
    double data_wait_seconds;
    std::map<std::string, double> phase_seconds = {};  // on a CPU
    std::string traced = {};
    double peak_rank_bytes = 0;  // of all ranks the most
  };
  Unread launch(std::int64_t number);
  bool step(std::int64_t number);  // false: stopped before it
  void agree_on_clocks(Unread& made);
  // Reads what the last step was, where that was not done yet, and records it.
  void settle();
  // Each file, or each that is not in the log yet. False: stopped in the middle.
  bool evaluate(std::int64_t number, bool only_missing = false);
  bool evaluate(std::int64_t number, std::size_t data_file);
  void judge(std::int64_t number, const eval::EvaluationResult& result);
  // Leaves the configuration and the beginning of this call of the run, once, where it makes a
  // step.
  void begin();
  // After an evaluation: keeps the best one's checkpoint.
  void save_best(std::int64_t number);
  // Says and records why no further step is made, where the last one is not reached.
  void end_early();
  void save(std::int64_t number);
  // save() of which a full disk costs the checkpoint and not the run: that is said, and the next
  // interval tries again. At the last step as save_last().
  void save_if_there_is_room(std::int64_t number);
  // The newest work, after which nothing comes: says what is lost where there is no room for it.
  void save_last(std::int64_t number);
  // Whether older checkpoints were removed, of those that the next save would remove.
  bool make_room();
  [[nodiscard]] std::optional<std::int64_t> kept_best();
  // Of the evaluations before the start, the best one whose checkpoint is there. On rank 0.
  [[nodiscard]] std::optional<std::int64_t> best_at_start() const;
  void prune(std::int64_t newest);
  RunOutcome stop();
  void finish();
  void tell(const Unread& made, const StepOutcome& outcome);
  void record(const Unread& made, const StepOutcome& outcome);
  // Counts a step that was left out for not being finite. Throws sherd::Error(NonFinite) on every
  // rank where it is one too many.
  void count_skipped(std::int64_t number, const StepOutcome& outcome);
  // Which kernels compute attention on a GPU, as they are chosen.
  void say_attention();
  [[nodiscard]] bool checkpoint_is_due(std::int64_t number) const;
  [[nodiscard]] bool evaluation_is_due(std::int64_t number) const;
  [[nodiscard]] bool is_evaluated(const EvaluationKey& key);
  [[nodiscard]] EvaluationKey evaluation_key(std::int64_t number, std::size_t data_file) const;
  // Those that tell of the best so far. On rank 0.
  [[nodiscard]] std::vector<runs::Evaluation> earlier_evaluations() const;
  // On rank 0, whose fault is then that of all; so is one that was kept.
  void on_first_rank(const std::function<void()>& work);
  // Does what this rank does by itself between collectives. What it throws is kept for the next
  // share_failure() or on_first_rank(): no rank leaves the others in a collective.
  void keep_failure(const std::function<void()>& work);
  // Throws what any rank has kept, on all of them.
  void share_failure();
  // Whether this rank was asked to stop, or has a failure to share: then no rank goes on.
  [[nodiscard]] bool stops_here();
  [[nodiscard]] eval::EvaluationOptions evaluation_options(std::int64_t samples);
  void say(const std::string& line);
  void say_kernels();

  Prepared run_;
  sherd::Sharded<model::CausalLm>& model_;
  sherd::AdamW& optimizer_;
  sherd::GradScaler* scaler_;
  const RunHooks& hooks_;
  sherd::World& world_;
  Checkpoints checkpoints_;
  data::Loader loader_;
  std::unique_ptr<RunLog> log_;  // on rank 0
  BestSoFar best_;
  bool has_begun_ = false;        // see begin()
  bool starts_elsewhere_;         // at a checkpoint of another folder
  std::optional<Unread> unread_;  // the last one; on a CPU never between steps
  LossWatch watch_;
  StepTrace trace_;
  std::optional<GraphedMicroBatches> graphs_;  // device.cuda_graphs
  std::size_t attention_said_ = 0;             // choices of kernels that have been printed
  std::int64_t saved_step_;                    // the newest that a checkpoint holds
  std::optional<std::int64_t> kept_best_;      // on rank 0: the newest best one that was saved
  std::chrono::steady_clock::time_point looked_at_folder_{};
  std::chrono::steady_clock::time_point started_;
  Cadence saves_;
  Cadence evaluations_;
  bool save_time_is_up_ = false;        // on the first rank's clock, as of the last step
  bool evaluation_time_is_up_ = false;  // the same
  StepsMade made_;
  std::exception_ptr failure_;  // of this rank alone so far
  std::string kernels_said_;    // on a GPU: ops::kernels_text()
  RunOutcome outcome_;
};

}  // namespace llm::train
