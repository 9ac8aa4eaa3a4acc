#pragma once
// From a conversation to tokens: the template, the rule of chat_spans.h and the tokenizer.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "llm/text/chat_spans.h"
#include "llm/text/chat_template.h"
#include "llm/text/prompt.h"
#include "llm/text/tokenizer.h"

namespace llm::text {

/// What of a conversation is learned.
enum class Supervised { All, Last, Template };

/// How conversations become samples.
struct ChatOptions {
  Supervised supervised = Supervised::All;  ///< Template: its generation blocks
  bool as_rendered = false;                 ///< see ChatRule
  /// Encode special tokens in messages as the text that they are; else such messages are refused.
  bool special_tokens_as_text = false;
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();  ///< of the template
  std::string now = {};  ///< what strftime_now prints, "2026-03-09T00:00:00"; empty: the present
};

/// Encodes conversations. Several threads may do so at once.
class ChatEncoder {
 public:
  ChatEncoder(Tokenizer tokenizer, ChatTemplate chat_template, ChatOptions options);

  /// The samples of a conversation, each of at most `max_length` tokens: what is longer is cut at
  /// its end, and what learns nothing then is left out. A turn whose prompt alone has other ids
  /// than it has in the whole becomes a sample of its own, prompt and answer encoded apart as
  /// generation has them. Throws sherd::Error(BadData) for a conversation that the rule refuses, or
  /// of which nothing is left, and if no token stops generation.
  [[nodiscard]] std::vector<LabelledPrompt> encode(const Conversation& conversation,
                                                   std::int64_t max_length) const;

  /// A text of a conversation in tokens, by the same rule; nothing is cut. `turns` may be any
  /// numbers. Throws as encode().
  [[nodiscard]] std::vector<LabelledPrompt> encode(const ChatSample& sample) const;

  /// The samples as texts. Throws as encode().
  [[nodiscard]] std::vector<ChatSample> samples(const Conversation& conversation) const;

  /// The prompt that generation is given for messages, and its ids. Throws TemplateError.
  [[nodiscard]] std::string prompt_text(const Conversation& conversation) const;
  [[nodiscard]] std::vector<TokenId> encode_prompt(const Conversation& conversation) const;

  /// The token that the template puts behind an answer, and that is learned as its end; none where
  /// the template writes none that the vocabulary has.
  [[nodiscard]] std::optional<TokenId> stop_id() const { return stop_id_; }
  /// What stops an answer: the tokenizer's stop_ids(), and stop_id().
  [[nodiscard]] std::vector<TokenId> stop_ids() const;
  [[nodiscard]] const ChatTemplate& chat_template() const { return template_; }
  [[nodiscard]] const ChatOptions& options() const { return options_; }
  /// What samples depend on beside the tokenizer.
  [[nodiscard]] std::string key() const;

 private:
  [[nodiscard]] RenderedChat render(const nlohmann::ordered_json& messages,
                                    const nlohmann::ordered_json& tools,
                                    bool add_generation_prompt) const;
  [[nodiscard]] std::optional<std::string> stop_of_template() const;
  [[nodiscard]] ChatRule rule_of(const nlohmann::ordered_json& tools) const;
  [[nodiscard]] const Conversation& as_encoded(const Conversation& conversation,
                                               Conversation& cut) const;
  [[nodiscard]] ChatSample sample_of_template(const Conversation& conversation) const;
  [[nodiscard]] Encoding encoded(std::string_view text) const;
  [[nodiscard]] bool holds_prompt(const Encoding& whole, std::string_view text,
                                  std::size_t prompt_bytes) const;

  Tokenizer tokenizer_;
  ChatTemplate template_;
  ChatOptions options_;
  std::vector<std::string> control_tokens_;
  std::vector<std::string> stop_tokens_;
  std::optional<TokenId> stop_id_;
};

}  // namespace llm::text
