#pragma once
// Weights of a Hugging Face folder into a model. Parameters have the names that transformers saves,
// so that a parameter and its tensor are called alike, but for checkpoints of the base model alone.

#include <functional>
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

/// Finds each parameter of `model` (which may be on meta) in a folder, but for those of adapters. A
/// folder whose embedding has
/// no base model in its name ("word_embeddings.weight", as in published BLOOM checkpoints) is taken
/// to leave it out everywhere. Tensors that no parameter
/// needs are allowed only where they can be derived: the head of a tied model, equal to its
/// embedding, and rotary frequencies.
/// Throws Error(BadData): a parameter that is missing, has another shape, or is not stored in
/// floats; a tensor that is left over. Tensor, expected and found are named.
[[nodiscard]] std::vector<WeightSource> match_weights(const model::CausalLmImpl& model,
                                                      const sherd::SafetensorsFolder& folder);

/// Returns the folder's name of a parameter that was matched, empty for others: for
/// sherd::load_safetensors().
[[nodiscard]] std::function<std::string(const std::string&)> names_in_file(
    const std::vector<WeightSource>& sources);

/// Whether the folder holds weights in the format that is read here, whatever is in them.
[[nodiscard]] bool has_weights(const std::string& folder);

/// Reads the weights of a model that is not sharded. Throws as match_weights(), and
/// Error(StorageIo).
void load_weights(model::CausalLmImpl& model, const sherd::SafetensorsFolder& folder);

}  // namespace llm::io
