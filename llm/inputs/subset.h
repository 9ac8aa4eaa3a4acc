#pragma once
// Which samples of a data set are used, and how often in an epoch.

#include <cstdint>
#include <span>
#include <vector>

#include "llm/inputs/samples.h"

namespace llm::inputs {

/// How many of a file's questions are used, and which.
struct Limit {
  std::int64_t samples = 0;  ///< 0: all
  bool random = false;       ///< drawn by `seed`; else the first of the file
  std::uint64_t seed = 0;
};

/// `count` of the indices 0 … size - 1 in ascending order, drawn by `seed`; all of them if there
/// are no more. A larger count contains a smaller one.
[[nodiscard]] std::vector<std::size_t> subset(std::size_t size, std::size_t count,
                                              std::uint64_t seed);

/// The indices 0 … size - 1, each as often as `weight` says, in the order in which they stand in a
/// mixture; for a fraction of once, that share of them, at least one, drawn by `seed`.
[[nodiscard]] std::vector<std::size_t> weighted(std::size_t size, double weight,
                                                std::uint64_t seed);

/// A data set of a mixture.
struct Part {
  Samples samples;
  double weight = 1;  ///< how often a sample is seen in an epoch, above 0
};

/// All parts one after the other, each as often as its weight says; for a fraction of once, that
/// share of the samples, at least one, drawn by `seed`. One part of weight 1 is returned as it is.
/// Memory: 8 bytes per sample of the mixture otherwise.
[[nodiscard]] Samples mixed(std::span<const Part> parts, std::uint64_t seed);

}  // namespace llm::inputs
