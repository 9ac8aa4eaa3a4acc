#pragma once

#include "llm/model/causal_lm.h"
#include "sherd/state_dict.h"

namespace llm::model {

/// First values for the parameters of `model`, by the modules that hold them: weights of norms 1 (0
/// where they count from 1), biases 0, adapters as sherd::initialize_lora(), all others from
/// N(0, `std`). For sherd::initialize(), so that they are the same on any world size. `model` has
/// no quantized weights: only weights of a folder are quantized. PyTorch: `_init_weights` of
/// transformers, `std` being `initializer_range`.
[[nodiscard]] sherd::ParamInitFn random_weights(const CausalLmImpl& model, double std);

}  // namespace llm::model
