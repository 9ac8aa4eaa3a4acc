#pragma once
// What tokens of a GGUF file's vocabulary are.

#include <cstdint>

namespace llm::gguf {

/// By llama.cpp's numbers.
enum class TokenType : std::int64_t {
  Normal = 1,
  Unknown = 2,
  Control = 3,      ///< special: never text
  UserDefined = 4,  ///< found in a text before all others
  Unused = 5,
  Byte = 6  ///< "<0x0A>": a byte that no other token has
};

/// What stands for a blank in vocabularies of SentencePiece.
inline constexpr const char* kBlank = "\xe2\x96\x81";

}  // namespace llm::gguf
