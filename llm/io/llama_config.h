#pragma once

#include "llm/io/json_fields.h"
#include "llm/model/llama.h"

namespace llm::io {

/// Reads the fields of a Llama's config.json. Throws as read_hf_config().
[[nodiscard]] model::LlamaConfig read_llama_config(const JsonFields& fields);

}  // namespace llm::io
