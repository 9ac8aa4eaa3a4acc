#include "llm/inputs/samples.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace llm::inputs {

namespace {

class ReferencedPairs final : public SampleSource {
 public:
  ReferencedPairs(Samples pairs, std::vector<PairLogps> logps)
      : pairs_(std::move(pairs)), logps_(std::move(logps)) {}

  [[nodiscard]] std::size_t size() const override { return pairs_.size(); }
  [[nodiscard]] Sample at(std::size_t index) const override {
    Sample sample = pairs_[index];
    sample.reference_logps = logps_[index];
    return sample;
  }
  [[nodiscard]] std::int64_t length(std::size_t index) const override {
    return pairs_.length(index);
  }
  [[nodiscard]] std::int64_t supervised(std::size_t index) const override {
    return pairs_.supervised(index);
  }
  [[nodiscard]] std::int64_t rejected_begin(std::size_t index) const override {
    return pairs_.rejected_begin(index);
  }
  [[nodiscard]] bool has_reference() const override { return true; }
  [[nodiscard]] std::int64_t tokens() const override { return pairs_.tokens(); }

 private:
  Samples pairs_;
  std::vector<PairLogps> logps_;
};

}  // namespace

Samples with_reference(Samples pairs, std::vector<PairLogps> logps) {
  if (logps.size() != pairs.size()) {
    throw std::invalid_argument("[with_reference] got log-probabilities of " +
                                std::to_string(logps.size()) + " pairs for " +
                                std::to_string(pairs.size()) + " samples");
  }
  return Samples(std::make_shared<const ReferencedPairs>(std::move(pairs), std::move(logps)));
}

std::int64_t Sample::supervised_tokens() const {
  return std::count(supervised.begin(), supervised.end(), std::uint8_t{1});
}

std::span<const text::TokenId> Sample::prompt() const {
  const auto first = std::find(supervised.begin(), supervised.end(), std::uint8_t{1});
  return ids.first(static_cast<std::size_t>(first - supervised.begin()));
}

std::vector<Sample> documents_of(const Sample& sample) {
  if (sample.rejected_begin == 0) {
    return {sample};
  }
  const auto begin = static_cast<std::size_t>(sample.rejected_begin);
  return {{sample.ids.first(begin), sample.supervised.first(begin), sample.cut},
          {sample.ids.subspan(begin), sample.supervised.subspan(begin), sample.cut}};
}

SampleCut cut_of(const text::LabelledPrompt& prompt) {
  return {.prompt_tokens = static_cast<std::int32_t>(prompt.cut_tokens),
          .answer_tokens = static_cast<std::int32_t>(prompt.cut_answer_tokens),
          .answer_is_outside = prompt.answer_is_outside ? 1 : 0};
}

}  // namespace llm::inputs
