#include "llm/inputs/length_histogram.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace llm::inputs {

namespace {

constexpr std::int64_t kMostBins = 12;
constexpr int kBarColumns = 40;

// The least of 1, 2, 5, 10, 20, … with which the bins reach from one length to the other.
std::int64_t width_of_bins(std::int64_t shortest, std::int64_t longest) {
  const auto is_enough = [&](std::int64_t width) {
    return longest / width - shortest / width < kMostBins;
  };
  for (std::int64_t power = 1;; power *= 10) {
    for (const std::int64_t factor : {1, 2, 5}) {
      if (is_enough(factor * power)) {
        return factor * power;
      }
    }
  }
}

// In eighths of a column: U+2588, then one of U+2589 to U+258F.
std::string bar(double length) {
  const auto eighths = static_cast<int>(std::lround(length * kBarColumns * 8));
  std::string text;
  for (int column = 0; column < eighths / 8; ++column) {
    text += "\u2588";
  }
  if (eighths % 8 > 0) {
    text += {'\xE2', '\x96', static_cast<char>(0x90 - eighths % 8)};
  }
  return text;
}

}  // namespace

std::vector<LengthBin> length_histogram(std::span<const std::int64_t> lengths) {
  std::vector<LengthBin> bins;
  if (lengths.empty()) {
    return bins;
  }
  const std::int64_t width = width_of_bins(lengths.front(), lengths.back());
  for (std::int64_t from = lengths.front() / width * width; from <= lengths.back(); from += width) {
    bins.push_back({from, from + width - 1, 0});
  }
  for (const std::int64_t length : lengths) {
    ++bins[static_cast<std::size_t>((length - bins.front().from) / width)].samples;
  }
  return bins;
}

std::vector<double> bar_lengths(const std::vector<LengthBin>& bins) {
  std::int64_t most = 1;
  for (const LengthBin& bin : bins) {
    most = std::max(most, bin.samples);
  }
  std::vector<double> lengths;
  for (const LengthBin& bin : bins) {
    lengths.push_back(static_cast<double>(bin.samples) / static_cast<double>(most));
  }
  return lengths;
}

std::string histogram_lines(const std::vector<LengthBin>& bins) {
  const std::vector<double> bars = bar_lengths(bins);
  std::string lines;
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const LengthBin& bin = bins[i];
    const std::string range =
        bin.from == bin.to ? fmt::format("{}", bin.from) : fmt::format("{}-{}", bin.from, bin.to);
    lines += fmt::format("\n{:>15}  {}{}{}", range, bar(bars[i]), bin.samples > 0 ? " " : "",
                         bin.samples);
  }
  return lines;
}

}  // namespace llm::inputs
