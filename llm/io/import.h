#pragma once
// Weights of a Hugging Face folder into a model. Parameters have Hugging Face's names, so that a
// parameter and its tensor are called alike.

#include <string>
#include <vector>

#include "llm/model/causal_lm.h"
#include "sherd/fully_shard.h"
#include "sherd/safetensors.h"

namespace llm::io {

/// A parameter of a model and the tensor that holds its values.
struct WeightSource {
  std::string parameter;
  sherd::SafetensorsLocation location;  ///< valid as long as the folder object
};

/// Finds each parameter of `model` (which may be on meta) in a folder. Tensors that no parameter
/// needs are allowed only where they can be derived: the head of a tied model, equal to its
/// embedding, and rotary frequencies.
/// Throws Error(BadData): a parameter that is missing, has another shape, or is not stored in
/// floats; a tensor that is left over. Tensor, expected and found are named.
[[nodiscard]] std::vector<WeightSource> match_weights(const model::CausalLmImpl& model,
                                                      const sherd::SafetensorsFolder& folder);

/// Reads the weights of a model that is not sharded. Throws as match_weights(), and
/// Error(StorageIo).
void load_weights(model::CausalLmImpl& model, const sherd::SafetensorsFolder& folder);

}  // namespace llm::io
