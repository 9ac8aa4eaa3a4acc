#include "llm/text/record_prompt.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "sherd/error.h"

namespace llm::text {

namespace {

// What is left of a prompt when at least its first `excess` tokens are taken off.
std::string_view without_first_tokens(std::string_view prompt, const Encoding& encoding,
                                      std::int64_t excess) {
  std::vector<std::size_t> starts;  // of the tokens that come from the text
  for (const ByteRange& range : encoding.ranges) {
    if (range.end > range.begin) {
      starts.push_back(static_cast<std::size_t>(range.begin));
    }
  }
  // Several tokens may be parts of the first character.
  auto next = std::min(static_cast<std::size_t>(excess), starts.size());
  while (next < starts.size() && starts[next] == 0) {
    ++next;
  }
  return next == starts.size() ? std::string_view() : prompt.substr(starts[next]);
}

// What is left of a prompt, and how many tokens that are less.
struct Fitting {
  std::string_view prompt;
  std::int64_t cut_tokens = 0;
};

Fitting fitting(const PromptEncoder& encoder, std::string_view prompt) {
  const PromptLimits& limits = encoder.limits();
  std::int64_t whole_tokens = 0;
  for (;;) {
    Encoding encoding = encoder.tokenizer().encode(prompt);
    drop_doubled_begin(encoding);
    const auto tokens = static_cast<std::int64_t>(encoding.ids.size());
    whole_tokens = std::max(whole_tokens, tokens);  // each time it is less
    if (tokens <= limits.prompt_tokens()) {
      return {prompt, whole_tokens - tokens};
    }
    prompt = without_first_tokens(prompt, encoding, tokens - limits.prompt_tokens());
    if (prompt.empty()) {
      throw sherd::Error(
          sherd::ExitCode::BadData,
          fmt::format("nothing of the prompt is left: data.max_length ({}) minus "
                      "data.max_answer_tokens ({}) leaves {} for it, the tokens that the tokenizer "
                      "adds included: raise data.max_length",
                      limits.max_length_tokens, limits.max_answer_tokens, limits.prompt_tokens()));
    }
  }
}

std::string_view without_blanks_at_end(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

}  // namespace

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt) {
  Encoding encoding = tokenizer.encode(without_blanks_at_end(prompt));
  if (std::any_of(encoding.ranges.begin(), encoding.ranges.end(),
                  [](const ByteRange& range) { return range != ByteRange(); })) {
    drop_appended(encoding);
    drop_doubled_begin(encoding);
  }
  return std::move(encoding.ids);
}

LabelledPrompt encode_record(const PromptEncoder& encoder, std::string_view prompt,
                             std::string_view completion) {
  const std::string_view whole_prompt = without_blanks_at_end(prompt);
  const auto [kept, cut_tokens] = fitting(encoder, whole_prompt);
  std::string text(kept);
  text.append(prompt.substr(whole_prompt.size()));
  const auto& separator = encoder.options().separator;
  if (separator && !prompt.empty()) {
    text.append(*separator);
  } else if (!text.empty() && !is_space(text.back()) && !is_space(completion.front())) {
    text.push_back(' ');
  }
  text.append(completion);
  Encoding whole = encoder.tokenizer().encode(text);
  drop_doubled_begin(whole);
  drop_appended(whole);
  drop_blanks_behind_stop(whole, text, encoder.tokenizer().stop_ids());
  const std::int64_t room = encoder.limits().max_length_tokens;
  LabelledPrompt sample = labelled(std::move(whole),
                                   {.prompt_end = static_cast<std::int64_t>(kept.size()),
                                    .max_answer_tokens = room,
                                    .max_length_tokens = room},
                                   encoder.tokenizer());
  sample.cut_bytes = static_cast<std::int64_t>(whole_prompt.size() - kept.size());
  sample.cut_tokens = cut_tokens;
  sample.context_was_cut = sample.cut_bytes > 0;
  return sample;
}

}  // namespace llm::text
