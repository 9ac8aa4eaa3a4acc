#include "llm/inputs/samples.h"

#include <algorithm>

namespace llm::inputs {

std::int64_t Sample::supervised_tokens() const {
  return std::count(supervised.begin(), supervised.end(), std::uint8_t{1});
}

std::span<const text::TokenId> Sample::prompt() const {
  const auto first = std::find(supervised.begin(), supervised.end(), std::uint8_t{1});
  return ids.first(static_cast<std::size_t>(first - supervised.begin()));
}

SampleCut cut_of(const text::LabelledPrompt& prompt) {
  return {.prompt_tokens = static_cast<std::int32_t>(prompt.cut_tokens),
          .answer_tokens = static_cast<std::int32_t>(prompt.cut_answer_tokens),
          .answer_is_outside = prompt.answer_is_outside ? 1 : 0};
}

}  // namespace llm::inputs
