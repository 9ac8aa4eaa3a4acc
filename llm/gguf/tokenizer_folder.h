#pragma once
// The tokenizer of a GGUF file as the files of a Hugging Face folder.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "llm/gguf/gguf_file.h"

namespace llm::gguf {

/// What a GGUF file says of its tokenizer, as the contents of files.
struct TokenizerFiles {
  nlohmann::ordered_json tokenizer;         ///< tokenizer.json
  nlohmann::ordered_json tokenizer_config;  ///< tokenizer_config.json
  nlohmann::ordered_json special_tokens;    ///< special_tokens_map.json
  nlohmann::ordered_json generation_config;
  nlohmann::ordered_json ids;  ///< bos_token_id, eos_token_id, pad_token_id, for config.json
};

/// Reads it. `context_length`: the model's. Throws sherd::Error(BadData), naming the key, for a
/// tokenizer that is not read or cannot be right.
[[nodiscard]] TokenizerFiles tokenizer_files(const GgufFile& file, std::int64_t context_length);

}  // namespace llm::gguf
