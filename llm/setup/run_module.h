#pragma once
// Changes to the model's module of a run before it is sharded.

#include <functional>

#include "llm/config/run_config.h"
#include "llm/model/causal_lm.h"

namespace llm::setup {

/// Changes a module on meta before it is sharded: adds adapters, freezes parameters.
using PrepareModule = std::function<void(model::CausalLm& module)>;

/// The configuration with what the folder in adapter.path decides. Throws sherd::Error as
/// adapters::with_folder().
[[nodiscard]] config::RunConfig with_adapter_folder(config::RunConfig config);

/// Adds the run's adapter to the module, on meta, and freezes what it does not train. Throws
/// sherd::Error as adapters::adapt() and freeze_all_but().
void prepare_run_module(model::CausalLm& module, const config::RunConfig& config);

/// prepare_run_module() of this configuration, which it copies.
[[nodiscard]] PrepareModule preparation_of(const config::RunConfig& config);

}  // namespace llm::setup
