#pragma once
// How many samples have which length.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace llm::inputs {

/// The samples of `from` to `to` tokens, both included.
struct LengthBin {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t samples = 0;
  bool operator==(const LengthBin&) const = default;
};

/// Counts lengths, which ascend, in at most 12 bins of equal width: 1, 2 or 5 times a power of ten.
/// The first bin holds the shortest length and the last one the longest.
[[nodiscard]] std::vector<LengthBin> length_histogram(std::span<const std::int64_t> lengths);

/// The part of the fullest bin's count that a bin has, from 0 to 1 per bin.
[[nodiscard]] std::vector<double> bar_lengths(const std::vector<LengthBin>& bins);

/// A line with a bar per bin, after a line end each: "    0-49  ████ 123".
[[nodiscard]] std::string histogram_lines(const std::vector<LengthBin>& bins);

}  // namespace llm::inputs
