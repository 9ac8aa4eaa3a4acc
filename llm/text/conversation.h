#pragma once
// A conversation of chat data.

#include <string>

#include <nlohmann/json.hpp>

namespace llm::text {

/// Messages as the data has them, after a reader has normalised them: roles have the names of
/// OpenAI's format, parts of text are joined, arguments of calls are objects. The order of fields
/// is kept, since templates print it.
struct Conversation {
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;  ///< an array; null: none

  /// One message of a user.
  [[nodiscard]] static Conversation of_user(const std::string& message) {
    return {nlohmann::ordered_json::array({{{"role", "user"}, {"content", message}}}), nullptr};
  }
};

}  // namespace llm::text
