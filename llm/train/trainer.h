#pragma once
// A training run from configuration to the last checkpoint.

#include "llm/config/run_config.h"
#include "llm/train/run_hooks.h"
#include "sherd/world.h"

namespace llm::train {

/// Trains as `config` says: all ranks agree on the run, the output folder is locked, then come
/// tokenizer, data, model in shards, optimizer, resume, and step after step with checkpoints and
/// evaluations. However it ends from then on, it leaves summary.json and a line of it. Collective.
/// Throws sherd::Error with the exit code that the failure deserves. A run that was asked to stop
/// and then loses its peers (they end, or hang) throws Error(StorageIo), which names the steps that
/// no checkpoint holds; if there are none, it returns as stopped.
RunOutcome run(const config::RunConfig& config, sherd::World world, const RunHooks& hooks);

/// Says what run() would do, as far as that is known without a model: the configuration with its
/// choices made, length, where it begins, and its plan. Reads data and checkpoints, writes nothing
/// but the token cache. Collective. Returns whether it fits. Throws sherd::Error as run() does
/// before it loads the model.
[[nodiscard]] bool dry_run(const config::RunConfig& config, sherd::World world,
                           const RunHooks& hooks);

}  // namespace llm::train
