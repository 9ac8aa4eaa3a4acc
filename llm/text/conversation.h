#pragma once
// A conversation of chat data.

#include <nlohmann/json.hpp>

namespace llm::text {

/// Messages as the data has them, after a reader has normalised them: roles have the names of
/// OpenAI's format, parts of text are joined, arguments of calls are objects. The order of fields
/// is kept, since templates print it.
struct Conversation {
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;  ///< an array; null: none
};

}  // namespace llm::text
