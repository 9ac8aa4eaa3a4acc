#pragma once
// Arrays that the library's kernels for GPUs work on, launched by the emulator: seeded values,
// among them all that rounding treats in a way of its own, and elements around that nothing may
// touch.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "src/kernels/bits.h"
#include "src/kernels/kernels.h"

namespace sherd::cuda::test {

/// Elements before and after a range.
inline constexpr int64_t kMargin = 16;

/// A range of an array: `start` elements after a multiple of 16 bytes.
struct Range {
  int64_t numel = 0;
  int64_t start = 0;
};

/// An empty one, less than a pack, a pack, none that divides, heads and tails, two blocks.
inline constexpr Range kRanges[] = {{0, 0},  {1, 0},   {7, 0},   {8, 0},    {37, 0},  {37, 3},
                                    {64, 8}, {100, 4}, {203, 7}, {2069, 0}, {2069, 5}};

inline const std::vector<float>& special_values() {
  static const std::vector<float> values = {
      0.0F, -0.0F, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::denorm_min(),
      -std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
      std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(),
      // Halfway above an even bf16, which has no distance of 16 bits; above an odd one; nearly.
      std::bit_cast<float>(0x3f808000U), std::bit_cast<float>(0xbf808000U),
      std::bit_cast<float>(0x3f818000U), std::bit_cast<float>(0x3f807fffU),
      std::bit_cast<float>(0x7f7f8000U), std::bit_cast<float>(0x00008000U)};
  return values;
}

/// Normal ones, every fifth of them special.
inline std::vector<float> some_floats(const Range& range, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(range.numel + range.start + 2 * kMargin));
  const std::vector<float>& special = special_values();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random);
    if (i % 5 == seed % 5) {
      values[i] = special[(i / 5 + seed) % special.size()];
    }
  }
  return values;
}

template <class T>
std::vector<T> some_values(const Range& range, unsigned seed) {
  const std::vector<float> floats = some_floats(range, seed);
  if constexpr (std::is_same_v<T, float>) {
    return floats;
  } else {
    std::vector<T> bits(floats.size());
    std::transform(floats.begin(), floats.end(), bits.begin(), kernels::narrowed);
    return bits;
  }
}

/// Where a range begins.
template <class T>
T* begin(std::vector<T>& all, const Range& range) {
  return all.data() + kMargin + range.start;
}
template <class T>
const T* begin(const std::vector<T>& all, const Range& range) {
  return all.data() + kMargin + range.start;
}

// The same bits; a NaN is any other, as GPUs know but one.
inline bool is_same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
inline bool is_same(uint16_t a, uint16_t b) {
  return is_same(kernels::widened(a), kernels::widened(b));
}
inline bool is_same(int16_t a, int16_t b) {
  return a == b;
}
template <class T>
bool is_same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](T x, T y) { return is_same(x, y); });
}

template <class T>
testing::AssertionResult are_same(const std::vector<T>& found, const std::vector<T>& expected) {
  for (size_t i = 0; i < found.size(); ++i) {
    if (!is_same(found[i], expected[i])) {
      return testing::AssertionFailure() << "element " << i << " of " << found.size() << ": "
                                         << found[i] << ", not " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace sherd::cuda::test
