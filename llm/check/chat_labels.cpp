#include "llm/check/chat_labels.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "llm/text/printable.h"

namespace llm::check {

namespace {

using Ids = std::span<const text::TokenId>;

constexpr const char* kFix =
    "the samples were not made by this template: set data.cache = \"none\", and report it if that "
    "does not help";

// Ids [begin, end) of a sample that are learned.
struct Learned {
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::vector<Learned> learned_ranges(const inputs::Sample& sample) {
  std::vector<Learned> ranges;
  for (std::size_t i = 0; i < sample.ids.size(); ++i) {
    if (sample.supervised[i] == 0) {
      continue;
    }
    if (ranges.empty() || ranges.back().end != i) {
      ranges.push_back({i, i});
    }
    ranges.back().end = i + 1;
  }
  return ranges;
}

// Without white space, which decoders add and take off, and without what marks a cut token.
std::string squeezed(std::string_view text) {
  constexpr std::string_view kCutMark = "\xef\xb7\x9f";      // U+FDDF of ChatEncoder
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // of a character that was cut
  std::string kept;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (rest.starts_with(kCutMark) || rest.starts_with(kReplacement)) {
      i += kCutMark.size();
      continue;
    }
    if (std::string_view(" \t\r\n").find(text[i]) == std::string_view::npos) {
      kept.push_back(text[i]);
    }
    ++i;
  }
  return kept;
}

bool is_answer(const std::string& learned, const ExpectedAnswer& answer, bool is_cut,
               const text::Tokenizer& tokenizer) {
  // A normaliser may write a text in another way: both go through the tokenizer.
  const std::string expected = squeezed(tokenizer.decode(tokenizer.encode_whole(answer.text).ids,
                                                         /*skip_special_tokens=*/false));
  const std::string found = squeezed(learned);
  return is_cut ? expected.starts_with(found) : found == expected;
}

std::string part_of(Ids ids, const text::Tokenizer& tokenizer) {
  constexpr std::size_t kTold = 12;
  return text::in_quotes(tokenizer.decode(ids.first(std::min(kTold, ids.size())), false));
}

// How many ids two prompts have in common.
std::size_t shared_ids(Ids a, Ids b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}

std::string fault_of_prompt(Ids before, const std::vector<ExpectedAnswer>& answers,
                            const text::Tokenizer& tokenizer) {
  const auto nearest = std::max_element(
      answers.begin(), answers.end(), [&](const ExpectedAnswer& a, const ExpectedAnswer& b) {
        return shared_ids(before, a.prompt) < shared_ids(before, b.prompt);
      });
  const std::size_t at = shared_ids(before, nearest->prompt);
  return fmt::format(
      "from token {} on, the ids before an answer are {}, and `sherd generate` would build {}; {}",
      at, part_of(before.subspan(at), tokenizer),
      part_of(Ids(nearest->prompt).subspan(at), tokenizer), kFix);
}

std::string fault_of_range(const inputs::Sample& sample, const Learned& range,
                           const std::vector<ExpectedAnswer>& answers,
                           const std::vector<text::TokenId>& stop_ids,
                           const text::Tokenizer& tokenizer) {
  const Ids before = sample.ids.first(range.begin);
  const Ids learned = sample.ids.subspan(range.begin, range.end - range.begin);
  const std::string text = tokenizer.decode(learned, /*skip_special_tokens=*/false);
  const bool is_cut = range.end == sample.ids.size() && sample.cut.answer_tokens > 0;
  const auto has_prompt = [&](const ExpectedAnswer& answer) {
    return !answer.has_prompt ||
           std::equal(before.begin(), before.end(), answer.prompt.begin(), answer.prompt.end());
  };
  if (std::none_of(answers.begin(), answers.end(), has_prompt)) {
    return fault_of_prompt(before, answers, tokenizer);
  }
  const bool ends = std::find(stop_ids.begin(), stop_ids.end(), learned.back()) != stop_ids.end();
  if (!is_cut && !ends) {
    return fmt::format(
        "the learned text {} does not end with a token that stops generation: name a "
        "data.chat_template whose answers end with one, or set eos_token_id in "
        "generation_config.json to the token that ends them",
        text::in_quotes(text));
  }
  const auto matches = [&](const ExpectedAnswer& answer) {
    return has_prompt(answer) && is_answer(text, answer, is_cut, tokenizer);
  };
  if (std::none_of(answers.begin(), answers.end(), matches)) {
    const auto answer = std::find_if(answers.begin(), answers.end(), has_prompt);
    return fmt::format("message {}: {} is learned, and the answer is {}; {}", answer->message + 1,
                       text::in_quotes(text), text::in_quotes(answer->text), kFix);
  }
  return "";
}

}  // namespace

std::vector<ExpectedAnswer> expected_answers(const text::Conversation& conversation,
                                             const text::ChatEncoder& encoder) {
  std::vector<ExpectedAnswer> answers;
  for (const text::ChatSample& sample : encoder.samples(conversation)) {
    for (std::size_t i = 0; i < sample.turns.size(); ++i) {
      const auto begin = static_cast<std::size_t>(sample.spans[i].begin);
      const auto size = static_cast<std::size_t>(sample.spans[i].end) - begin;
      ExpectedAnswer answer{sample.turns[i], {}, sample.text.substr(begin, size)};
      const auto first = conversation.messages.begin();
      const text::Conversation before{
          nlohmann::ordered_json::array_t(first, first + sample.turns[i]), conversation.tools};
      answer.prompt = encoder.encode_prompt(before);
      answer.has_prompt = !encoder.options().as_rendered ||
                          encoder.prompt_text(before) == sample.text.substr(0, begin);
      answers.push_back(std::move(answer));
    }
  }
  return answers;
}

std::string chat_fault(const inputs::Sample& sample, const std::vector<ExpectedAnswer>& answers,
                       const std::vector<text::TokenId>& stop_ids,
                       const text::Tokenizer& tokenizer) {
  const std::vector<Learned> ranges = learned_ranges(sample);
  if (ranges.empty()) {
    return std::string("nothing of the sample is learned; ") + kFix;
  }
  for (const Learned& range : ranges) {
    if (std::string fault = fault_of_range(sample, range, answers, stop_ids, tokenizer);
        !fault.empty()) {
      return fault;
    }
  }
  return "";
}

}  // namespace llm::check
