#pragma once
// Where values stand in the text of a JSON document, which a parsed one does not know.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace llm::text {

/// Of a value in a JSON text.
struct JsonPosition {
  std::size_t begin_byte = 0;
  std::size_t end_byte = 0;  ///< one past its last
  std::int64_t line = 1;     ///< of its first byte, from 1
};

/// The positions of the values that JSON pointers (RFC 6901) name, as far as they are there; of one
/// that is there several times, the last. `text` has been parsed without a fault. Pointers through
/// names with escapes are not found. Cost: one pass over the text. Memory: what is found.
[[nodiscard]] std::unordered_map<std::string, JsonPosition> json_positions(
    std::string_view text, const std::unordered_set<std::string>& pointers);

}  // namespace llm::text
