#pragma once
// Which tokens begin and end a text, from the small JSON files beside a tokenizer.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace llm::text {

/// What a model folder says about the tokens that end a text and stop generation.
struct SpecialIds {
  std::optional<std::int32_t> end;
  std::vector<std::int32_t> stop;  ///< ascending, `end` included
};

/// Reads tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json of
/// a folder, as far as they are there. `id_of` gives the id of a token. Precedence:
/// Tokenizer::from_folder. Throws sherd::Error BadData, naming file and field, for a field of
/// another type or a token that is not in the vocabulary.
SpecialIds read_special_ids(
    const std::filesystem::path& folder,
    const std::function<std::optional<std::int32_t>(const std::string&)>& id_of);

}  // namespace llm::text
