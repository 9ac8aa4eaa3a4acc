#pragma once
// What a Hugging Face folder holds beside and around its weights.

#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/model/causal_lm.h"
#include "sherd/safetensors.h"

namespace llm::io {

/// Name, dtype and shape of each tensor of an exported model, in order. The model may be on meta; a
/// parameter and its tensor are called alike, a tied head has no tensor.
[[nodiscard]] std::vector<sherd::SafetensorsSpec> export_specs(const model::CausalLmImpl& model,
                                                               c10::ScalarType dtype);

/// Copies what makes a model folder complete: config.json, with its dtype field (in the spelling it
/// has) set to `dtype` and all else kept; generation_config.json and the tokenizer's files where
/// they are there. Each appears whole or not at all; config.json comes last.
/// Throws Error: InputMissing, BadData for what cannot be read; CannotWrite, StorageIo.
void copy_config_and_tokenizer(const std::string& source_folder, const std::string& out_folder,
                               c10::ScalarType dtype);

}  // namespace llm::io
