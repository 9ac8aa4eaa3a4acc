#pragma once
// A model folder's tokenizer as keys of a GGUF file.

#include <cstdint>
#include <string>
#include <vector>

#include "llm/gguf/gguf_value.h"

namespace llm::gguf {

struct TokenizerKeys {
  std::vector<KeyValue> keys;
  std::vector<std::string> stop_tokens;  ///< that end an answer
};

/// Reads tokenizer.json, its small files and the chat template. The vocabulary gets one token per
/// row of the embedding: those that are missing are called [PADn]. `model_name`: the file's;
/// llama.cpp tokenizes by it. Throws sherd::Error: InputMissing; BadData, naming file and field,
/// for a tokenizer that llama.cpp does not have.
[[nodiscard]] TokenizerKeys tokenizer_keys(const std::string& folder, std::int64_t embedding_rows,
                                           const std::string& model_name);

}  // namespace llm::gguf
