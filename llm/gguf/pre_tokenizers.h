#pragma once
// How byte-level tokenizers cut a text into pieces before they merge bytes, and what llama.cpp
// calls that (`tokenizer.ggml.pre`).

#include <string>

#include <nlohmann/json.hpp>

namespace llm::gguf {

/// The name of a tokenizer.json's `pre_tokenizer`, by its regular expression. Throws
/// sherd::Error(BadData), showing it, for one that llama.cpp has no name for. `place`: the file.
[[nodiscard]] std::string pre_name(const nlohmann::json& pre_tokenizer, const std::string& place);

/// The `pre_tokenizer` of a name; null if it is not known.
[[nodiscard]] nlohmann::ordered_json pre_tokenizer_named(const std::string& name);

/// The names that are known: "gpt-2, llama-bpe, …".
[[nodiscard]] std::string known_pre_names();

}  // namespace llm::gguf
