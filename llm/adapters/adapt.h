#pragma once
// Adds an adapter to a model.

#include <set>
#include <string>

#include <torch/nn/module.h>

#include "llm/adapters/chosen_modules.h"
#include "llm/config/run_config.h"

namespace llm::adapters {

/// Adds the adapter that `adapter` describes to `model`, on meta and before it is sharded, and
/// freezes everything but the adapter and the modules that are trained whole. Throws as
/// choose_modules(). PEFT: `get_peft_model`.
ChosenModules adapt(torch::nn::Module& model, const config::AdapterSection& adapter);

/// The qualified names of the parameters that an adapter consists of: its matrices and those of
/// modules that are trained whole. `model` is adapted.
[[nodiscard]] std::set<std::string> adapter_parameters(const torch::nn::Module& model,
                                                       const config::AdapterSection& adapter);

/// For people: "adapter: LoRA on 14 linear maps, rank 5, scale 3.13, and lm_head whole; trains
/// 6,840 of 32,408 parameters (21.1 %)". `model` is adapted; adapter parameters count.
[[nodiscard]] std::string adapter_line(const torch::nn::Module& model,
                                       const config::AdapterSection& adapter);

}  // namespace llm::adapters
