#pragma once
// Whether a sample of a conversation keeps the rule of chat data.

#include <string>
#include <vector>

#include "llm/inputs/samples.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/conversation.h"
#include "llm/text/tokenizer.h"

namespace llm::check {

/// An answer that is learned, made once more in the way in which it would be generated.
struct ExpectedAnswer {
  int message = 0;                    ///< its number in the conversation, from 0
  std::vector<text::TokenId> prompt;  ///< as `sherd generate` builds it
  std::string text;                   ///< with the token that stops generation
  bool has_prompt = true;  ///< false: its template writes it in another way after a prompt
};

/// The learned answers of a conversation. Throws sherd::Error as ChatEncoder::samples().
[[nodiscard]] std::vector<ExpectedAnswer> expected_answers(const text::Conversation& conversation,
                                                           const text::ChatEncoder& encoder);

/// What of a sample breaks the rule, with what to try; empty: nothing. The ids before each learned
/// range have to be the prompt of an answer; the range has to be that answer and nothing else, and
/// to end with one of `stop_ids`, unless it was cut.
[[nodiscard]] std::string chat_fault(const inputs::Sample& sample,
                                     const std::vector<ExpectedAnswer>& answers,
                                     const std::vector<text::TokenId>& stop_ids,
                                     const text::Tokenizer& tokenizer);

}  // namespace llm::check
