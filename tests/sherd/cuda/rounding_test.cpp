// The quotients and roots that AdamW takes without branches are IEEE 754's, for estimates within
// one unit of the last place of the nearest.

#include "gpu/rounding.cuh"

#include <bit>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace sherd::gpu {
namespace {

// So many units of the last place away.
float moved(float value, int32_t units) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) + static_cast<uint32_t>(units));
}

TEST(Rounding, OfQuotientsByAFixedDivisorIsThatOfDivision) {
  for (const double beta2 : {0.999, 0.95, 0.99}) {
    for (const int step : {1, 17, 100000}) {
      const auto divisor = static_cast<float>(std::sqrt(1 - std::pow(beta2, step)));
      const float inverse = 1.0F / divisor;
      int wrong = 0;
      for (uint32_t mantissa = 0; mantissa < (1U << 23); mantissa += 3) {
        const float value = std::bit_cast<float>(0x38800000U + mantissa);
        wrong += quotient_by(value, divisor, inverse) != value / divisor;
      }
      EXPECT_EQ(wrong, 0) << divisor;
    }
  }
}

TEST(Rounding, OfQuotientsIsThatOfDivision) {
  std::mt19937 random(1);
  std::uniform_int_distribution<uint32_t> numerators(0x12800000U, 0x5d800000U);  // 2⁻⁹⁰, 2⁶⁰
  std::uniform_int_distribution<uint32_t> denominators(0x26800000U, 0x49800000U);  // 2⁻⁵⁰, 2²⁰
  int wrong = 0;
  for (int i = 0; i < 2'000'000; ++i) {
    const auto a = std::bit_cast<float>(numerators(random) | (i % 2 == 0 ? 0U : 0x80000000U));
    const auto b = std::bit_cast<float>(denominators(random));
    const float estimate = moved(1.0F / b, i % 3 - 1);
    wrong += quotient(a, b, estimate) != a / b;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Rounding, OfRootsIsThatOfSqrt) {
  std::mt19937 random(2);
  std::uniform_int_distribution<uint32_t> values(0x0d000000U, 0x53800000U);  // 2⁻¹⁰¹, 2⁴⁰
  int wrong = 0;
  for (int i = 0; i < 2'000'000; ++i) {
    const auto value = std::bit_cast<float>(values(random));
    const auto inverse = static_cast<float>(1.0 / std::sqrt(static_cast<double>(value)));
    wrong += root(value, moved(inverse, i % 3 - 1)) != std::sqrt(value);
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace sherd::gpu
