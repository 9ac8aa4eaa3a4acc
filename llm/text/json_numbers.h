#pragma once
// JSON of data files as other programs write it: with numbers that JSON's grammar does not have.

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace llm::text {

/// Returns the text with 0 for each NaN, Infinity, -Infinity and number beyond the range of double
/// outside of strings, followed by spaces so that every byte keeps its place. None if there is no
/// such number. Python's json.dumps and Apache Arrow write them.
[[nodiscard]] std::optional<std::string> with_finite_numbers(std::string_view bytes);

/// Parses like sherd::files::parse_json() and accepts these numbers too. Throws as it does.
[[nodiscard]] nlohmann::json parse_data_json(const std::string& bytes, const std::string& place);

}  // namespace llm::text
