#include "llm/inputs/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace llm::inputs {
namespace {

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t start) : state_(start) {}

  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }

  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15U); }

  /// Uniform in 0 … bound - 1, without bias.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t uneven = (0 - bound) % bound;  // 2^64 mod bound
    std::uint64_t draw = next();
    while (draw < uneven) {
      draw = next();
    }
    return draw % bound;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t samples, std::uint64_t seed,
                                      std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  SplitMix64 random(SplitMix64::mix(SplitMix64::mix(seed) + static_cast<std::uint64_t>(epoch)));
  for (std::size_t i = order.size(); i-- > 1;) {
    std::swap(order[i], order[random.below(i + 1)]);
  }
  return order;
}

Sampler::Sampler(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed)
    : samples_(samples), global_batch_(global_batch), seed_(seed) {}

std::int64_t Sampler::steps_per_epoch() const {
  return (samples_ + global_batch_ - 1) / global_batch_;
}

std::vector<std::int64_t> Sampler::batch(std::int64_t step) {
  const std::int64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) {
    order_ = epoch_order(samples_, seed_, epoch);
    epoch_ = epoch;
  }
  const std::int64_t begin = step % steps_per_epoch() * global_batch_;
  const std::int64_t end = std::min(begin + global_batch_, samples_);
  return {order_.begin() + begin, order_.begin() + end};
}

}  // namespace llm::inputs
