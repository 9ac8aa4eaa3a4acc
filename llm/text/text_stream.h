#pragma once
// The text of tokens that come one at a time.

#include <cstddef>
#include <string>
#include <vector>

#include "llm/text/tokenizer.h"

namespace llm::text {

/// Decodes tokens as they come, without special tokens. The parts joined are
/// Tokenizer::decode() of all tokens. No part ends within a character.
class TextStream {
 public:
  explicit TextStream(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  /// Returns the text that has become certain with this token; empty within a character.
  [[nodiscard]] std::string take(TokenId token);
  /// Returns what is left at the end: U+FFFD in place of an unfinished character.
  [[nodiscard]] std::string rest();

 private:
  // Appends the text after `shown_` of the kept tokens.
  [[nodiscard]] std::string new_text(bool at_end);

  Tokenizer tokenizer_;
  // The last tokens: decoders join a token to those before it.
  std::vector<TokenId> kept_;
  std::size_t told_ = 0;  // of them, whose text was returned
};

}  // namespace llm::text
