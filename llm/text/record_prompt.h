#pragma once
// A record as the model sees it: its prompt, its completion, the end token.

#include <string_view>
#include <vector>

#include "llm/text/prompt.h"

namespace llm::text {

/// Encodes prompt and completion once as a whole, joined by the separator of the encoder's options:
/// where it has none, by a space, unless white space is between them. Special tokens in the texts
/// are kept. The tokenizer's begin is not added to a prompt that has it, nor the end token to a
/// completion that ends with a token that stops generation. Blanks at the prompt's end count as the
/// completion's begin, since tokenizers join them to the word that follows. Supervised are the
/// tokens that start after the prompt, and the end token.
///
/// A prompt of more than `prompt_tokens()` loses its begin, so that what stands before the
/// completion remains; no character is cut. A completion may have what the prompt leaves of
/// `max_length_tokens`; a longer one is cut there and has no end token. Throws
/// sherd::Error(BadData) if nothing would be left of it.
[[nodiscard]] LabelledPrompt encode_record(const PromptEncoder& encoder, std::string_view prompt,
                                           std::string_view completion);

/// A prompt alone, for generation: the ids that encode_record() has before the completion, where
/// nothing was cut. So blanks at its end and what the tokenizer appends are left out.
[[nodiscard]] std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer,
                                                 std::string_view prompt);

}  // namespace llm::text
