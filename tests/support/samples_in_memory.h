#pragma once
// Samples that no file holds.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "llm/inputs/samples.h"

namespace llm::inputs {

/// Samples side by side in flat arrays.
class SamplesInMemory final : public inputs::SampleSource {
 public:
  explicit SamplesInMemory(const std::vector<text::LabelledPrompt>& prompts) {
    for (const text::LabelledPrompt& prompt : prompts) {
      ids_.insert(ids_.end(), prompt.ids.begin(), prompt.ids.end());
      supervised_.insert(supervised_.end(), prompt.supervised.begin(), prompt.supervised.end());
      begins_.push_back(ids_.size());
      cuts_.push_back(inputs::cut_of(prompt));
    }
  }

  [[nodiscard]] std::size_t size() const override { return cuts_.size(); }
  [[nodiscard]] inputs::Sample at(std::size_t index) const override {
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
  std::vector<inputs::SampleCut> cuts_;
};

inline inputs::Samples samples_in_memory(const std::vector<text::LabelledPrompt>& prompts) {
  return inputs::Samples(std::make_shared<const SamplesInMemory>(prompts));
}

}  // namespace llm::inputs
