#pragma once

#include <cstdint>

#include "llm/model/causal_lm.h"
#include "sherd/init.h"

namespace llm::model {

/// First values for the parameters of `model`, by the modules that hold them: weights of norms 1 (0
/// where they count from 1), biases 0, adapters as sherd::initialize_lora(), all others from
/// N(0, `std`). For sherd::initialize(), so that they are the same on any world size. Quantized
/// weights are drawn whole on each rank, one at a time, by `seed`. PyTorch: `_init_weights` of
/// transformers, `std` being `initializer_range`.
[[nodiscard]] sherd::ParamInitFn random_weights(const CausalLmImpl& model, double std,
                                                uint64_t seed = 0);

}  // namespace llm::model
