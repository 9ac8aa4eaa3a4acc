#pragma once

#include "sherd/init.h"

namespace llm::model {

/// First values for a parameter of any family: matrices from N(0, `std`), biases 0, weights of
/// norms 1. For sherd::initialize(), so that they are the same on any world size.
/// PyTorch: `_init_weights` of transformers, `std` being `initializer_range`.
void fill_random(sherd::ParameterInit& parameter, double std);

}  // namespace llm::model
