#pragma once

#include "llm/io/json_fields.h"
#include "llm/model/bloom.h"

namespace llm::io {

/// Reads the fields of a BLOOM's config.json, in the spelling of published checkpoints (`n_embed`,
/// `num_attention_heads`, `num_hidden_layers`) or of transformers (`hidden_size`, `n_head`,
/// `n_layer`). Throws as read_hf_config().
[[nodiscard]] model::BloomConfig read_bloom_config(const JsonFields& fields);

}  // namespace llm::io
