#pragma once
// What a run makes of its model's module before it is sharded.

#include <functional>

#include "llm/config/run_config.h"
#include "llm/model/causal_lm.h"

namespace llm::setup {

/// Changes a module on meta before it is sharded: freezes parameters.
using PrepareModule = std::function<void(model::CausalLm& module)>;

/// Freezes what the run does not train, in a module on meta. Throws sherd::Error as
/// freeze_all_but().
void prepare_run_module(model::CausalLm& module, const config::RunConfig& config);

/// prepare_run_module() of this configuration, which it copies.
[[nodiscard]] PrepareModule preparation_of(const config::RunConfig& config);

}  // namespace llm::setup
