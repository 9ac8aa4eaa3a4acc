#pragma once
// The rule by which a conversation becomes samples: what is learned is what will be generated, in
// the context in which it will be generated.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "llm/text/conversation.h"
#include "llm/text/tokenizer.h"

namespace llm::text {

/// The bytes [begin, end) of a sample's text.
using Span = ByteRange;

/// A conversation, or its begin, as the model sees it.
struct ChatSample {
  std::vector<int> turns;   ///< numbers of the messages that are learned, from 0
  std::string text;         ///< special tokens are in it: encode it without adding any
  std::vector<Span> spans;  ///< per turn: what is learned, with the token that stops generation
};

/// What a model and its template make of messages.
struct ChatRule {
  /// Renders the first `count` messages. Throws sherd::Error for a template that cannot be
  /// rendered.
  std::function<std::string(const nlohmann::ordered_json& messages, std::size_t count,
                            bool add_generation_prompt)>
      render;
  std::vector<std::string> stop_tokens;     ///< what generation stops at
  std::vector<std::string> control_tokens;  ///< the tokenizer's special tokens, as text
  bool last_only = false;                   ///< learn the last turn alone
  /// Where a prompt is not the begin of the whole, learn what follows the text that they share.
  bool as_rendered = false;
};

/// Why a conversation is not learned from.
struct ChatFault {
  /// A word: nothing_to_learn, special_token_in_text, template, mismatch, no_stop, printed_as_list,
  /// dropped_content, dropped_reasoning or dropped_tool_call.
  std::string reason;
  std::optional<int> turn = {};  ///< number of the message, from 0
  std::string detail = {};       ///< the token, the template's fault, or the text without a stop
  std::size_t common_bytes = 0;  ///< of a mismatch: where the two texts part
  std::string prompt = {};       ///< of a mismatch: how the prompt continues
  std::string text = {};         ///< of a mismatch: how the whole text continues

  /// A sentence for people, with what to try.
  [[nodiscard]] std::string message() const;
};

/// Samples, or a fault.
struct ChatVerdict {
  std::vector<ChatSample> samples;
  std::optional<ChatFault> fault = {};
};

/// Applies the rule. Per assistant turn that is learned (not the first message, `weight` not 0), P
/// is the messages before it with a generation prompt, and L the messages up to it. L has to begin
/// with P; learned is what follows, up to the end of the first stop token. From the last turn to
/// the first, a sample holds all earlier turns whose L, up to the end of what is learned, it begins
/// with. So each turn is learned once. The first turn with a fault decides. Cost: two renders per
/// turn.
[[nodiscard]] ChatVerdict samples_of(const Conversation& conversation, const ChatRule& rule);

/// The end of the first stop token at or after `begin`; of two that begin at one place the longer.
[[nodiscard]] std::optional<std::size_t> first_stop(std::string_view text, std::size_t begin,
                                                    const std::vector<std::string>& stop_tokens);

}  // namespace llm::text
