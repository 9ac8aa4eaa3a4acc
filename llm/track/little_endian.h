#pragma once
// Numbers in files whose order of bytes is given.

#include <concepts>
#include <cstddef>
#include <string>

namespace llm::track {

/// Appends `value`, the lowest byte first.
template <std::unsigned_integral Number>
void append_little_endian(std::string& bytes, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xffU));
  }
}

}  // namespace llm::track
