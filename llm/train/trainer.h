#pragma once
// A training run from configuration to the last checkpoint.

#include <functional>
#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/eval/evaluator.h"
#include "sherd/world.h"

namespace llm::train {

/// What a run reports to whoever started it.
struct RunHooks {
  std::function<void(const std::string& line)> say;  ///< a line for people; called on rank 0 alone
  std::function<bool()> stop_requested;              ///< asked before each step, on every rank
};

struct RunOutcome {
  bool stopped = false;  ///< on request, with a checkpoint committed
  std::int64_t steps_done = 0;
  std::string checkpoint;  ///< the newest one's folder; empty if none was written
  std::optional<eval::EvaluationResult> evaluation;  ///< the last one
};

/// Trains as `config` says: tokenizer, data, model in shards, resume, then step after step with
/// evaluation and checkpoints. Collective. Throws sherd::Error with the exit code that the failure
/// deserves.
RunOutcome run(const config::RunConfig& config, sherd::World world, const RunHooks& hooks);

}  // namespace llm::train
