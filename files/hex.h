#pragma once
// Bytes as hexadecimal digits. Standard library alone: launch/ uses it too.

#include <cstddef>
#include <string>
#include <string_view>

namespace sherd::files {

/// Two lower-case digits a byte.
[[nodiscard]] inline std::string hex_of(const void* bytes, std::size_t size) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto* values = static_cast<const unsigned char*>(bytes);
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    text += kDigits[values[i] >> 4U];
    text += kDigits[values[i] & 15U];
  }
  return text;
}

}  // namespace sherd::files
