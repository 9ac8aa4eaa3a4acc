#pragma once
// UTF-8, code point by code point.

#include <cstddef>
#include <optional>
#include <string_view>

namespace llm::text {

/// A Unicode code point, and how many bytes it takes.
struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;
};

/// Whether the byte goes on with a character that another began.
[[nodiscard]] constexpr bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

/// The first code point of a text; none where its bytes begin no UTF-8 (RFC 3629: shortest form, no
/// surrogates, at most U+10FFFF), and of an empty text.
[[nodiscard]] std::optional<CodePoint> first_code_point(std::string_view text);

/// The first byte at which a text is no UTF-8; none where it is UTF-8.
[[nodiscard]] std::optional<std::size_t> first_byte_without_utf8(std::string_view text);

/// The start of a text, at most `bytes` long but for the rest of its last character.
[[nodiscard]] std::string_view start_of(std::string_view text, std::size_t bytes);

}  // namespace llm::text
