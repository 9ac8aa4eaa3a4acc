#pragma once
// In which order the samples of a data set are seen.

#include <cstdint>
#include <vector>

namespace llm::inputs {

/// The order of one epoch: a permutation of 0 … samples - 1, the same on every machine, that
/// depends on nothing else.
///
/// SplitMix64 (Steele et al. 2014) started at mix(mix(seed) + epoch), where mix is its output
/// function, drives a Fisher-Yates shuffle from the last place down to the second: place i is
/// swapped with place j, uniform in 0 … i, which is the first draw not below 2^64 mod (i + 1),
/// taken modulo i + 1.
std::vector<std::int64_t> epoch_order(std::int64_t samples, std::uint64_t seed, std::int64_t epoch);

/// Which samples each step trains on: epoch after epoch, each sample once an epoch, another order
/// each epoch. It knows no world size and keeps no state but a cache: any step may be asked for, so
/// that a resumed run needs its step number alone.
class Sampler {
 public:
  /// Needs samples > 0 and global_batch > 0 (samples a step).
  Sampler(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed);

  /// Steps of an epoch; the last may be smaller.
  [[nodiscard]] std::int64_t steps_per_epoch() const;
  /// The samples of a step (from 0, over all epochs), in order: `global_batch` of them, fewer in
  /// the last step of an epoch. Cost: shuffling the data set when the epoch changes. Memory: 8
  /// bytes a sample.
  [[nodiscard]] std::vector<std::int64_t> batch(std::int64_t step);

 private:
  std::int64_t samples_;
  std::int64_t global_batch_;
  std::uint64_t seed_;
  std::int64_t epoch_ = -1;          // of order_
  std::vector<std::int64_t> order_;  // [samples]
};

}  // namespace llm::inputs
