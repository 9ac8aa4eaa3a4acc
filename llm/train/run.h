#pragma once
// A run: what it is made of, from its inputs to its log.

#include <memory>
#include <optional>
#include <string>

#include "llm/model/causal_lm.h"
#include "llm/plan/run_plan.h"
#include "llm/setup/agreement.h"
#include "llm/setup/run_note.h"
#include "llm/track/progress.h"
#include "llm/track/trackers.h"
#include "llm/train/flops_utilization.h"
#include "llm/train/output_lock.h"
#include "llm/train/resume.h"
#include "llm/train/run_hooks.h"
#include "llm/train/run_log.h"
#include "llm/train/start.h"
#include "sherd/custom.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"

namespace llm::train {

/// The parts of a run, in the order in which run() makes them.
struct Run {
  sherd::World& world;
  const RunHooks& hooks;
  track::Progress* progress;         ///< on rank 0, else null
  track::Say say_now;                ///< a line on rank 0; throws what the caller's does
  std::shared_ptr<OutputLock> lock;  ///< on rank 0
  RunInputs inputs;
  std::unique_ptr<sherd::Objective> objective = {};  ///< null: cross-entropy
  setup::RunNote note = {};                          ///< of this run, at its start
  ResumePlan resume = {};
  std::optional<plan::RunPlan> plan = {};  ///< of memory, on rank 0
  std::optional<sherd::Sharded<model::CausalLm>> model = {};
  std::optional<sherd::AdamW> optimizer = {};
  std::optional<sherd::GradScaler> scaler = {};    ///< where the loss is scaled
  Candidate start = {};                            ///< the checkpoint that it continues from
  std::unique_ptr<track::Trackers> trackers = {};  ///< on rank 0
  FlopsUtilization mfu = {};                       ///< how it is taken, on rank 0
  std::unique_ptr<RunLog> log = {};                ///< on rank 0
  setup::KeptFailure failure = {};                 ///< of this rank, between collectives
  RunOutcome outcome = {};                         ///< what the run has reached

  [[nodiscard]] const config::RunConfig& config() const { return inputs.config; }
  /// Says a line on rank 0. Keeps what that throws.
  void say(const std::string& line) {
    if (world.rank() == 0) {
      failure.keep([&] { say_now(line); });
    }
  }
  /// Whether this rank was asked to stop, or has a failure to share: then no rank goes on.
  [[nodiscard]] bool stops_here() {
    bool stops = true;
    failure.keep([&] { stops = hooks.stop_requested(); });
    return stops || failure.is_kept();
  }
  /// As KeptFailure::on_rank_0. Collective.
  void on_rank_0(const std::function<void()>& work) { failure.on_rank_0(world, work); }
};

}  // namespace llm::train
