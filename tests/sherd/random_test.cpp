#include "src/kernels/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace sherd::kernels {
namespace {

TEST(Philox, GivesThePublishedAnswers) {
  // Random123, tests/kat_vectors, the lines of "philox4x32 10".
  struct Answer {
    std::array<uint32_t, 4> counter;
    std::array<uint32_t, 2> key;
    std::array<uint32_t, 4> words;
  };
  const std::vector<Answer> answers = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Answer& answer : answers) {
    EXPECT_EQ(philox4x32_10(answer.counter, answer.key), answer.words);
  }
}

TEST(StableHash, GivesThePublishedAnswers) {
  // Fowler, Noll and Vo's test vectors for FNV-1a of 64 bits.
  EXPECT_EQ(stable_hash(""), 0xcbf29ce484222325U);
  EXPECT_EQ(stable_hash("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(stable_hash("foobar"), 0x85944171f73967e8U);
}

// Whole blocks, from element `first` on, a multiple of four.
std::vector<float> drawn(uint64_t seed, const char* name, int64_t first, int64_t numel,
                         const Distribution& of) {
  std::vector<float> values(static_cast<size_t>(numel));
  fill_random(values.data(), static_cast<uint64_t>(first) / RandomWords::kPerBlock,
              numel / RandomWords::kPerBlock, {seed, stable_hash(name)}, of);
  return values;
}

std::vector<float> uniforms(uint64_t seed, const char* name, int64_t first, int64_t numel) {
  return drawn(seed, name, first, numel, Uniform{-2.0, 3.0});
}

std::vector<float> normals(uint64_t seed, const char* name, int64_t first, int64_t numel) {
  return drawn(seed, name, first, numel, Normal{1.5, 0.5});
}

// Computed apart from this code, by the rule: the bits of every seeded run follow from it.
TEST(RandomElements, FollowTheRule) {
  const std::vector<float> normal = normals(7, "weight", 0, 4);
  const std::vector<float> uniform = uniforms(7, "weight", 4, 4);
  EXPECT_EQ(normal, (std::vector<float>{1.46776903F, 1.59064007F, 1.37797403F, 1.67510903F}));
  EXPECT_EQ(uniform, (std::vector<float>{-0.539999604F, -1.29896176F, 0.204032615F, 1.10532081F}));
}

TEST(RandomElements, OfAnyBlocksAreThoseOfTheWhole) {
  for (const auto& draw : {uniforms, normals}) {
    const std::vector<float> whole = draw(3, "weight", 0, 104);
    for (int64_t first = 0; first < 104; first += 4) {
      for (int64_t numel = 0; first + numel <= 104; numel += 4) {
        const std::vector<float> part = draw(3, "weight", first, numel);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first));
      }
    }
  }
}

int equal_elements(const std::vector<float>& a, const std::vector<float>& b) {
  int count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    count += a[i] == b[i] ? 1 : 0;
  }
  return count;
}

TEST(RandomElements, OfOtherSeedsNamesAndPlacesAreOthers) {
  const auto base = normals(3, "weight", 0, 4096);
  EXPECT_LE(equal_elements(base, normals(4, "weight", 0, 4096)), 2);
  EXPECT_LE(equal_elements(base, normals(3, "weighs", 0, 4096)), 2);
  EXPECT_LE(equal_elements(base, normals(3 + (uint64_t{1} << 32U), "weight", 0, 4096)), 2);
  EXPECT_LE(equal_elements(base, normals(3, "weight", 4096, 4096)), 2);
  // Blocks are counted with 64 bits: 2^34 elements further on, the lower word has come round.
  EXPECT_LE(equal_elements(base, normals(3, "weight", int64_t{1} << 34U, 4096)), 2);
}

constexpr int64_t kMany = 1 << 20;

struct Moments {
  double mean = 0;
  double std = 0;
  double skewness = 0;
  double kurtosis = 0;
};

Moments moments_of(const std::vector<float>& values) {
  const auto count = static_cast<double>(values.size());
  Moments m;
  for (const float value : values) {
    m.mean += value / count;
  }
  double second = 0;
  double third = 0;
  double fourth = 0;
  for (const float value : values) {
    const double d = value - m.mean;
    second += d * d / count;
    third += d * d * d / count;
    fourth += d * d * d * d / count;
  }
  m.std = std::sqrt(second);
  m.skewness = third / (second * m.std);
  m.kurtosis = fourth / (second * second);
  return m;
}

// Tolerances are about five standard errors of each estimate.
TEST(RandomElements, AreUniform) {
  const std::vector<float> values = uniforms(11, "weight", 0, kMany);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*least, -2.0F);
  EXPECT_LE(*most, 3.0F);
  EXPECT_NEAR(*least, -2.0F, 1e-4);
  EXPECT_NEAR(*most, 3.0F, 1e-4);
  const Moments m = moments_of(values);
  EXPECT_NEAR(m.mean, 0.5, 0.007);
  EXPECT_NEAR(m.std, 5.0 / std::sqrt(12.0), 0.005);
  EXPECT_NEAR(m.kurtosis, 1.8, 0.01);
  std::array<int, 16> bins{};
  for (const float value : values) {
    ++bins[std::min<size_t>(15, static_cast<size_t>((value + 2.0F) / 5.0F * 16.0F))];
  }
  for (const int bin : bins) {
    EXPECT_NEAR(bin, kMany / 16, 5 * std::sqrt(static_cast<double>(kMany) / 16));
  }
}

TEST(RandomElements, AreNormal) {
  const std::vector<float> values = normals(11, "weight", 0, kMany);
  const Moments m = moments_of(values);
  EXPECT_NEAR(m.mean, 1.5, 0.0025);
  EXPECT_NEAR(m.std, 0.5, 0.002);
  EXPECT_NEAR(m.skewness, 0.0, 0.012);
  EXPECT_NEAR(m.kurtosis, 3.0, 0.025);
  const auto within = [&](double stds) {
    return static_cast<double>(
               std::count_if(values.begin(), values.end(),
                             [&](float value) { return std::abs(value - 1.5) <= 0.5 * stds; })) /
           static_cast<double>(kMany);
  };
  EXPECT_NEAR(within(1), 0.682689, 0.0025);
  EXPECT_NEAR(within(2), 0.954500, 0.0011);
  EXPECT_NEAR(within(3), 0.997300, 0.0003);
  // Neighbours come from one pair of words, and are independent all the same.
  double product = 0;
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    product += (values[i] - 1.5) * (values[i + 1] - 1.5) / (0.25 * kMany / 2);
  }
  EXPECT_NEAR(product, 0.0, 0.007);
}

}  // namespace
}  // namespace sherd::kernels
