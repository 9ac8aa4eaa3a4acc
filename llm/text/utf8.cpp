#include "llm/text/utf8.h"

#include <algorithm>

namespace llm::text {

namespace {

// The bytes that a first byte announces; 0 for one that begins nothing.
std::size_t length_of(unsigned char first) {
  return first < 0x80   ? 1
         : first < 0xC2 ? 0
         : first < 0xE0 ? 2
         : first < 0xF0 ? 3
         : first < 0xF5 ? 4
                        : 0;
}

bool is_shortest_form(char32_t value, std::size_t bytes) {
  return bytes < 3 || value >= (bytes == 3 ? 0x800U : 0x10000U);
}

}  // namespace

std::optional<CodePoint> first_code_point(std::string_view text) {
  if (text.empty()) {
    return std::nullopt;
  }
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t bytes = length_of(first);
  if (bytes == 0 || bytes > text.size()) {
    return std::nullopt;
  }
  char32_t value = bytes == 1 ? first : first & (0x7FU >> bytes);
  for (const char next : text.substr(1, bytes - 1)) {
    if (!is_continuation(next)) {
      return std::nullopt;
    }
    value = (value << 6U) | (static_cast<unsigned char>(next) & 0x3FU);
  }
  const bool is_surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (is_surrogate || value > 0x10FFFF || !is_shortest_form(value, bytes)) {
    return std::nullopt;
  }
  return CodePoint{value, bytes};
}

std::optional<std::size_t> first_byte_without_utf8(std::string_view text) {
  for (std::size_t byte = 0; byte < text.size();) {
    const auto point = first_code_point(text.substr(byte));
    if (!point) {
      return byte;
    }
    byte += point->bytes;
  }
  return std::nullopt;
}

std::string_view start_of(std::string_view text, std::size_t bytes) {
  std::size_t end = std::min(text.size(), bytes);
  while (end < text.size() && is_continuation(text[end])) {
    ++end;
  }
  return text.substr(0, end);
}

}  // namespace llm::text
