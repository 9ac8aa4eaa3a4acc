#pragma once
// The kinds of questions that chat_check answers, one function each.

#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

namespace chat_check {

using Json = nlohmann::ordered_json;

/// Answers a question. Throws sherd::Error: Usage for a question that lacks a field.
using Answer = Json (*)(const Json& question);

struct Kind {
  std::string_view name;  // of the question's field `do`
  Answer answer;
};

/// All kinds.
[[nodiscard]] std::span<const Kind> kinds();

Json answer_read(const Json& question);
Json answer_render(const Json& question);
Json answer_samples(const Json& question);
Json answer_tokens(const Json& question);

/// Returns a field of a question. Throws sherd::Error Usage if it is missing.
const Json& field_of(const Json& question, const char* name);
std::string text_of(const Json& question, const char* name);

}  // namespace chat_check
