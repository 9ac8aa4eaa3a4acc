#include "llm/data/subset.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "llm/data/sampler.h"

namespace llm::data {
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

Samples mixed(std::span<const Part> parts, std::uint64_t seed) {
  if (parts.size() == 1 && parts.front().weight == 1) {
    return parts.front().samples;
  }
  SamplesBuilder builder;
  for (const Part& part : parts) {
    for (const std::size_t index : weighted(part.samples.size(), part.weight, seed)) {
      builder.add(part.samples[index]);
    }
  }
  return std::move(builder).build();
}

}  // namespace llm::data
