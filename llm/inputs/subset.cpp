#include "llm/inputs/subset.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "llm/inputs/sampler.h"

namespace llm::inputs {
std::vector<std::size_t> subset(std::size_t size, std::size_t count, std::uint64_t seed) {
  // Not the order of an epoch of this seed, whose first batches these would else be.
  constexpr std::int64_t kNoEpoch = -1;
  const auto order = epoch_order(static_cast<std::int64_t>(size), seed, kNoEpoch);
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < std::min(size, count); ++i) {
    chosen.push_back(static_cast<std::size_t>(order[i]));
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<std::size_t> weighted(std::size_t size, double weight, std::uint64_t seed) {
  const double whole = std::floor(weight);
  const double rest = (weight - whole) * static_cast<double>(size);
  std::vector<std::size_t> all(size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::size_t> indices;
  for (double round = 0; round < whole; ++round) {
    indices.insert(indices.end(), all.begin(), all.end());
  }
  auto count = static_cast<std::size_t>(std::llround(rest));
  count = indices.empty() ? std::max<std::size_t>(count, 1) : count;
  const std::vector<std::size_t> drawn = subset(size, std::min(count, size), seed);
  indices.insert(indices.end(), drawn.begin(), drawn.end());
  return indices;
}

namespace {

// Which sample of which part each place of a mixture has: 8 bytes per place.
class Mixture final : public SampleSource {
 public:
  Mixture(std::span<const Part> parts, std::uint64_t seed) {
    for (const Part& part : parts) {
      const std::vector<std::size_t> indices = weighted(part.samples.size(), part.weight, seed);
      places_.reserve(places_.size() + indices.size());
      for (const std::size_t index : indices) {
        places_.push_back(parts_.size() << kSampleBits | index);
        tokens_ += part.samples.length(index);
      }
      parts_.push_back(part.samples);
    }
  }

  [[nodiscard]] std::size_t size() const override { return places_.size(); }
  [[nodiscard]] Sample at(std::size_t index) const override {
    return parts_[places_[index] >> kSampleBits][sample_of(index)];
  }
  [[nodiscard]] std::int64_t length(std::size_t index) const override {
    return parts_[places_[index] >> kSampleBits].length(sample_of(index));
  }
  [[nodiscard]] std::int64_t supervised(std::size_t index) const override {
    return parts_[places_[index] >> kSampleBits].supervised(sample_of(index));
  }
  [[nodiscard]] std::int64_t rejected_begin(std::size_t index) const override {
    return parts_[places_[index] >> kSampleBits].rejected_begin(sample_of(index));
  }
  [[nodiscard]] bool has_reference() const override { return parts_.front().has_reference(); }
  [[nodiscard]] std::int64_t tokens() const override { return tokens_; }

 private:
  static constexpr unsigned kSampleBits = 40;
  [[nodiscard]] std::size_t sample_of(std::size_t index) const {
    return places_[index] & ((std::uint64_t{1} << kSampleBits) - 1);
  }

  std::vector<Samples> parts_;
  std::vector<std::uint64_t> places_;  // part above kSampleBits, sample below
  std::int64_t tokens_ = 0;
};

}  // namespace

Samples mixed(std::span<const Part> parts, std::uint64_t seed) {
  if (parts.size() == 1 && parts.front().weight == 1) {
    return parts.front().samples;
  }
  return Samples(std::make_shared<const Mixture>(parts, seed));
}

}  // namespace llm::inputs
