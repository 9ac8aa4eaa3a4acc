#pragma once
// What `sherd train` does once its ranks have met.

#include "launch/rank_environment.h"
#include "llm/config/run_config.h"
#include "llm/train/trainer.h"
#include "sherd/world.h"

namespace app {

/// Hooks that print lines and warnings, and know what a launcher has told its rank.
[[nodiscard]] llm::train::RunHooks hooks_that_print(
    const sherd::launch::RankEnvironment& environment);

/// Says, on rank 0, how a run that was asked to stop goes on. Returns the program's exit code.
[[nodiscard]] int exit_code_of(const llm::train::RunOutcome& outcome,
                               const llm::config::RunConfig& config, const sherd::World& world,
                               const llm::train::RunHooks& hooks);

}  // namespace app
