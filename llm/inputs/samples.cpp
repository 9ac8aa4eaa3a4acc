#include "llm/inputs/samples.h"

#include <algorithm>

namespace llm::inputs {

namespace {

// Samples side by side in flat arrays.
class SamplesInMemory final : public SampleSource {
 public:
  explicit SamplesInMemory(const std::vector<text::LabelledPrompt>& prompts) {
    for (const text::LabelledPrompt& prompt : prompts) {
      ids_.insert(ids_.end(), prompt.ids.begin(), prompt.ids.end());
      supervised_.insert(supervised_.end(), prompt.supervised.begin(), prompt.supervised.end());
      begins_.push_back(ids_.size());
      cuts_.push_back(cut_of(prompt));
    }
  }

  [[nodiscard]] std::size_t size() const override { return cuts_.size(); }
  [[nodiscard]] Sample at(std::size_t index) const override {
    const std::size_t begin = begins_[index];
    const std::size_t size = begins_[index + 1] - begin;
    return {std::span(ids_).subspan(begin, size), std::span(supervised_).subspan(begin, size),
            cuts_[index]};
  }
  [[nodiscard]] std::int64_t length(std::size_t index) const override {
    return static_cast<std::int64_t>(begins_[index + 1] - begins_[index]);
  }
  [[nodiscard]] std::int64_t supervised(std::size_t index) const override {
    return at(index).supervised_tokens();
  }
  [[nodiscard]] std::int64_t tokens() const override {
    return static_cast<std::int64_t>(ids_.size());
  }

 private:
  std::vector<std::size_t> begins_ = {0};
  std::vector<text::TokenId> ids_;
  std::vector<std::uint8_t> supervised_;
  std::vector<SampleCut> cuts_;
};

}  // namespace

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

Samples::Samples(const std::vector<text::LabelledPrompt>& prompts)
    : source_(std::make_shared<const SamplesInMemory>(prompts)) {}

}  // namespace llm::inputs
