#include "llm/text/prompt.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/core.h>

#include "llm/text/chat_encoder.h"
#include "llm/text/printable.h"
#include "sherd/error.h"

namespace llm::text {
namespace {

constexpr std::string_view kBeforeQuestion = "Question: ";
constexpr std::string_view kBeforeContext = " Context: ";
constexpr std::string_view kAfterContext = " Answer:";

// A prompt and the position of its context.
struct PromptText {
  PromptText(const std::string& question, std::string_view context) {
    text.append(kBeforeQuestion).append(question).append(kBeforeContext);
    context_begin = static_cast<std::int64_t>(text.size());
    text.append(context);
    context_end = static_cast<std::int64_t>(text.size());
    text.append(kAfterContext);
  }
  std::string text;
  std::int64_t context_begin = 0;
  std::int64_t context_end = 0;
};

// What is left of a context when its last `excess` tokens are taken off; always shorter than
// before.
std::string_view without_last_tokens(std::string_view context, const PromptText& prompt,
                                     const Encoding& encoding, std::int64_t excess) {
  std::vector<std::int64_t> starts;
  for (const ByteRange& range : encoding.ranges) {
    if (range.begin >= prompt.context_begin && range.begin < prompt.context_end) {
      starts.push_back(range.begin - prompt.context_begin);
    }
  }
  if (excess >= static_cast<std::int64_t>(starts.size())) {
    return {};
  }
  // Offsets are those of whole characters, also where a token holds a part of one.
  const std::int64_t length = starts[starts.size() - static_cast<std::size_t>(excess)];
  const std::string_view kept = context.substr(0, static_cast<std::size_t>(length));
  const std::size_t last = kept.find_last_not_of(" \t\r\n");
  return kept.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

// Prompt and answer in one.
Encoding encode_whole(const Tokenizer& tokenizer, const PromptText& prompt, const Answer& answer) {
  return tokenizer.encode(prompt.text + " " + answer.text);
}

// Tokens that a prompt may have more by itself than in front of its answer: a template's last ones,
// and where the text's end is cut into tokens in another way.
constexpr std::int64_t kAtPromptsEnd = 8;

std::int64_t tokens_before(const Encoding& whole, std::int64_t prompt_end) {
  const auto first =
      std::find_if(whole.ranges.begin(), whole.ranges.end(),
                   [&](const ByteRange& range) { return range.begin >= prompt_end; });
  return first - whole.ranges.begin();
}

bool is_one_of(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

void drop_appended(Encoding& encoding) {
  while (!encoding.ids.empty() && encoding.ranges.back() == ByteRange()) {
    encoding.ids.pop_back();
    encoding.ranges.pop_back();
  }
}

void drop_doubled_begin(Encoding& encoding) {
  if (encoding.ids.size() > 1 && encoding.ids[0] == encoding.ids[1] &&
      encoding.ranges[0] == ByteRange() && encoding.ranges[1] != ByteRange()) {
    encoding.ids.erase(encoding.ids.begin());
    encoding.ranges.erase(encoding.ranges.begin());
  }
}

void drop_blanks_behind_stop(Encoding& encoding, std::string_view text,
                             const std::vector<TokenId>& stop_ids) {
  std::size_t kept = encoding.ids.size();
  const auto is_blank = [&](const ByteRange& range) {
    const auto part = text.substr(static_cast<std::size_t>(range.begin),
                                  static_cast<std::size_t>(range.end - range.begin));
    return range != ByteRange() && part.find_first_not_of(" \t\r\n") == std::string_view::npos;
  };
  while (kept > 0 && is_blank(encoding.ranges[kept - 1])) {
    --kept;
  }
  if (kept > 0 && is_one_of(stop_ids, encoding.ids[kept - 1])) {
    encoding.ids.resize(kept);
    encoding.ranges.resize(kept);
  }
}

LabelledPrompt labelled(Encoding whole, const AnswerBounds& bounds, const Tokenizer& tokenizer) {
  drop_appended(whole);
  LabelledPrompt sample;
  // Nothing comes before the first token that it could be learned from.
  std::int64_t supervised_begin =
      std::max<std::int64_t>(1, tokens_before(whole, bounds.prompt_end));
  sample.ids = std::move(whole.ids);
  // Else the text has its end, of which a prompt's own is none.
  if (std::ssize(sample.ids) <= supervised_begin ||
      !is_one_of(tokenizer.stop_ids(), sample.ids.back())) {
    sample.ids.push_back(tokenizer.end_id());
  }
  // Where a token reaches over the prompt's end, the prompt may be a token longer than alone.
  const std::int64_t longest =
      std::min(supervised_begin + bounds.max_answer_tokens, bounds.max_length_tokens);
  sample.cut_answer_tokens = std::max<std::int64_t>(0, std::ssize(sample.ids) - longest);
  sample.answer_was_cut = sample.cut_answer_tokens > 0;
  if (sample.answer_was_cut) {
    sample.ids.resize(static_cast<std::size_t>(longest));
    supervised_begin = std::min(supervised_begin, longest);
  }
  sample.supervised.assign(sample.ids.size(), 1);
  std::fill_n(sample.supervised.begin(),
              std::min<std::int64_t>(supervised_begin, std::ssize(sample.supervised)),
              std::uint8_t{0});
  return sample;
}

// A prompt that fits, and what was kept of its context.
struct PromptEncoder::Fitted {
  PromptText prompt;
  std::string_view context;
  std::vector<TokenId> ids;
  std::int64_t cut_tokens = 0;
};

PromptEncoder::PromptEncoder(Tokenizer tokenizer, PromptLimits limits, PromptOptions options)
    : tokenizer_(std::move(tokenizer)), limits_(limits), options_(std::move(options)) {
  if (limits_.max_answer_tokens < 1 || limits_.prompt_tokens() < 1) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("data.max_length ({}) must be larger than data.max_answer_tokens ({}), which "
                    "must be at least 1: the prompt gets the rest",
                    limits_.max_length_tokens, limits_.max_answer_tokens));
  }
  static_cast<void>(tokenizer_.end_id());  // throws now rather than at the first sample
}

const ChatEncoder& PromptEncoder::chat() const {
  if (!options_.chat) {
    // The model is at fault, and no record is: a code that skips none.
    throw sherd::Error(sherd::ExitCode::InputMissing, options_.no_chat.empty()
                                                          ? "conversations need a chat template"
                                                          : options_.no_chat);
  }
  return *options_.chat;
}

std::string PromptEncoder::key() const {
  return (options_.separator ? fmt::format(" separator {}", in_quotes(*options_.separator)) : "") +
         (options_.chat ? " chat " + options_.chat->key() : "");
}

PromptEncoder::Fitted PromptEncoder::fit(const std::string& question,
                                         std::string_view context) const {
  std::int64_t whole_tokens = 0;
  for (std::string_view kept = context;;) {
    PromptText prompt(question, kept);
    Encoding encoding = tokenizer_.encode(prompt.text);
    const auto tokens = static_cast<std::int64_t>(encoding.ids.size());
    whole_tokens = std::max(whole_tokens, tokens);  // each time it is less
    if (tokens <= limits_.prompt_tokens()) {
      drop_appended(encoding);
      return {std::move(prompt), kept, std::move(encoding.ids), whole_tokens - tokens};
    }
    if (kept.empty()) {
      throw sherd::Error(sherd::ExitCode::BadData,
                         fmt::format("the prompt takes {} tokens even without its context, and "
                                     "data.max_length ({}) minus data.max_answer_tokens ({}) "
                                     "leaves {}: raise data.max_length or shorten the question",
                                     tokens, limits_.max_length_tokens, limits_.max_answer_tokens,
                                     limits_.prompt_tokens()));
    }
    kept = without_last_tokens(kept, prompt, encoding, tokens - limits_.prompt_tokens());
  }
}

std::vector<TokenId> PromptEncoder::encode(const std::string& question,
                                           std::string_view context) const {
  return fit(question, context).ids;
}

LabelledPrompt PromptEncoder::encode_labelled(const std::string& question, std::string_view context,
                                              const Answer& answer) const {
  Fitted fitted{PromptText(question, context), context, {}, 0};
  Encoding whole = encode_whole(tokenizer_, fitted.prompt, answer);
  const auto prompt_end = [&] { return static_cast<std::int64_t>(fitted.prompt.text.size()); };
  if (tokens_before(whole, prompt_end()) + kAtPromptsEnd > limits_.prompt_tokens()) {
    fitted = fit(question, context);  // it is near the limit or above: the prompt alone decides
    whole = encode_whole(tokenizer_, fitted.prompt, answer);
  }
  LabelledPrompt sample =
      labelled(std::move(whole),
               {prompt_end(), limits_.max_answer_tokens, limits_.max_length_tokens}, tokenizer_);
  sample.context_was_cut = fitted.context.size() < context.size();
  sample.cut_bytes = static_cast<std::int64_t>(context.size() - fitted.context.size());
  sample.cut_tokens = fitted.cut_tokens;
  sample.answer_is_outside = answer.begin_byte + static_cast<std::int64_t>(answer.text.size()) >
                             static_cast<std::int64_t>(fitted.context.size());
  return sample;
}

}  // namespace llm::text
