#pragma once
// A question as the model sees it: prompt, labels, and the one rule by which a long context is cut.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/text/questions.h"
#include "llm/text/tokenizer.h"

namespace llm::text {

class ChatEncoder;

/// How long a sample may be, in tokens.
struct PromptLimits {
  std::int64_t max_length_tokens = 0;  ///< prompt and answer together (`data.max_length`)
  std::int64_t max_answer_tokens =
      32;  ///< kept free for the answer and its end token (`data.max_answer_tokens`)

  /// The longest prompt.
  [[nodiscard]] std::int64_t prompt_tokens() const { return max_length_tokens - max_answer_tokens; }
};

/// A question with its answer, encoded once as a whole.
struct LabelledPrompt {
  std::vector<TokenId> ids;              ///< prompt, answer, end token
  std::vector<std::uint8_t> supervised;  ///< of each id: 1 if the loss counts it, else 0; the first
                                         ///< is 0, for nothing comes before it
  bool context_was_cut = false;          ///< the prompt was too long for its context
  std::int64_t cut_bytes = 0;  ///< taken off the context's end, or a record's begin, to make it fit
  std::int64_t cut_tokens = 0;         ///< that the prompt would have more with them
  bool answer_was_cut = false;         ///< answer and end token were longer than max_answer_tokens
  std::int64_t cut_answer_tokens = 0;  ///< taken off them
  bool answer_is_outside =
      false;  ///< the answer's span is not wholly within what was kept of the context
  std::vector<int> turns = {};  ///< of a conversation: numbers of the messages that are learned
  bool is_apart = false;        ///< prompt and answer were encoded apart (chat_encoder.h)
  /// Of a preference pair: where `ids` of the rejected text begin, after those of the chosen one;
  /// else 0.
  std::int64_t rejected_begin = 0;
  /// Of a conversation: how many texts the rule of chat_spans.h makes of it; else 0.
  std::int64_t chat_texts = 0;
};

/// What stands between prompt and answer of an encoded text, and after it.
struct AnswerBounds {
  std::int64_t prompt_end = 0;  ///< byte of the text
  std::int64_t max_answer_tokens = 0;
  std::int64_t max_length_tokens = 0;
};

/// Takes off the tokens that a tokenizer's template puts behind every text: they come from no text,
/// and what follows a prompt is for the model to write. Of a text without tokens of its own nothing
/// is left.
void drop_appended(Encoding& encoding);

/// Takes off the token that a tokenizer's template puts in front of a text (such as <s>) where the
/// text begins with that token itself.
void drop_doubled_begin(Encoding& encoding);

/// Takes off white space behind a token that stops generation, which a rendered text may end with:
/// a model that has stopped writes nothing more. `text` is what was encoded.
void drop_blanks_behind_stop(Encoding& encoding, std::string_view text,
                             const std::vector<TokenId>& stop_ids);

/// The labels of a text that ends with its answer: supervised are the tokens that start at or after
/// the prompt's end, but never the first of all, and the tokenizer's end token after them, which is
/// added where the text does not end with a token that stops generation; what is too long is cut at
/// its end.
[[nodiscard]] LabelledPrompt labelled(Encoding whole, const AnswerBounds& bounds,
                                      const Tokenizer& tokenizer);

/// How samples of one's own data are written.
struct PromptOptions {
  /// Between a prompt and its completion; none: a space, unless one of them has white space there.
  std::optional<std::string> separator = {};
  std::shared_ptr<const ChatEncoder> chat = {};  ///< of conversations; null: there is none
  std::string no_chat = {};                      ///< why
};

/// Turns questions into ids: `Question: {question} Context: {context} Answer:`, and for training a
/// space, the answer and the end token. The same prompt in training, evaluation and generation.
///
/// The context is cut at its end until the prompt fits in `prompt_tokens()`: the excess tokens are
/// taken off, with white space before them, and the rest is encoded again. The answer plays no part
/// in this. Supervised are the tokens that start at or after the prompt's end, at most
/// `max_answer_tokens` of them; an answer cut so ends without the end token.
class PromptEncoder {
 public:
  /// Throws sherd::Error: Usage if the limits leave no room; BadData if the tokenizer has no end
  /// token.
  PromptEncoder(Tokenizer tokenizer, PromptLimits limits, PromptOptions options = {});

  /// The prompt alone, for generation: at most `prompt_tokens()` ids.
  /// Throws sherd::Error BadData, with the numbers, if the question alone does not fit.
  [[nodiscard]] std::vector<TokenId> encode(const std::string& question,
                                            std::string_view context) const;
  /// A sample: at most `max_length_tokens` ids. Throws as `encode`.
  [[nodiscard]] LabelledPrompt encode_labelled(const std::string& question,
                                               std::string_view context,
                                               const Answer& answer) const;

  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] const PromptLimits& limits() const { return limits_; }
  [[nodiscard]] const PromptOptions& options() const { return options_; }
  /// What conversations are encoded with. Throws sherd::Error BadData if there is nothing.
  [[nodiscard]] const ChatEncoder& chat() const;
  /// What samples depend on beside the tokenizer and the limits; empty: the defaults.
  [[nodiscard]] std::string key() const;

 private:
  struct Fitted;
  [[nodiscard]] Fitted fit(const std::string& question, std::string_view context) const;

  Tokenizer tokenizer_;
  PromptLimits limits_;
  PromptOptions options_;
};

}  // namespace llm::text
