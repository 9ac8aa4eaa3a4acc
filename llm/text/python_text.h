#pragma once
// Texts as Python makes them.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace llm::text {

/// Returns `text` without Unicode white space at both ends: str.strip().
[[nodiscard]] std::string_view python_strip(std::string_view text);
/// str(value) of a list or an object: "[{'type': 'text'}]".
[[nodiscard]] std::string python_repr(const nlohmann::ordered_json& value);
/// json.dumps(value, ensure_ascii=False): `[{"type": "text"}]`.
[[nodiscard]] std::string python_json(const nlohmann::ordered_json& value);

}  // namespace llm::text
