// First values that the kernel draws are a CPU's, but for the last places of a double.

#include "src/kernels/cuda/kernels/random.cuh"

#include <bit>
#include <cmath>
#include <numbers>

#include "src/kernels/random.h"
#include "tests/sherd/cuda/launched.h"

namespace sherd::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)
using kernels::Distribution;
using kernels::RandomWords;

constexpr RandomWords kWords{.seed = 5, .name_hash = kernels::stable_hash("weight")};

std::vector<float> drawn_by_cpu(uint64_t first_block, int64_t blocks, const Distribution& of) {
  std::vector<float> values(static_cast<size_t>(blocks * RandomWords::kPerBlock));
  kernels::fill_random(values.data(), first_block, blocks, kWords, of);
  return values;
}

// A pack more than is drawn, which nothing may touch.
std::vector<float> drawn_by_kernel(uint64_t first_block, int64_t blocks, const Distribution& of) {
  std::vector<float> values(static_cast<size_t>((blocks + 1) * RandomWords::kPerBlock), -7.0F);
  device_kernels().fill_random(values.data(), first_block, blocks, kWords, of, nullptr);
  for (int i = 0; i < RandomWords::kPerBlock; ++i) {
    EXPECT_EQ(values.back(), -7.0F);
    values.pop_back();
  }
  return values;
}

int64_t units_in_the_last_place(uint32_t a, uint32_t b) {
  return std::abs(static_cast<int64_t>(a) - static_cast<int64_t>(b));
}

struct Difference {
  int64_t elements = 0;  // that differ
  int64_t most_units = 0;
  void add(uint32_t a, uint32_t b) {
    elements += a != b ? 1 : 0;
    most_units = std::max(most_units, units_in_the_last_place(a, b));
  }
};

void expect_near(const Difference& difference, int64_t elements) {
  EXPECT_LE(difference.elements, elements / 1'000'000);
  EXPECT_LE(difference.most_units, 1);
}

TEST(RandomOnGpus, AreTheCpusButForOneInAMillionByOneUnit) {
  constexpr int64_t kBlocks = int64_t{1} << 20;
  for (const Distribution& of :
       {Distribution(kernels::Normal{0, 0.02}), Distribution(kernels::Normal{1.5, 0.5}),
        Distribution(kernels::Uniform{-0.03, 0.07})}) {
    const std::vector<float> expected = drawn_by_cpu(3, kBlocks, of);
    const std::vector<float> found = drawn_by_kernel(3, kBlocks, of);
    Difference in_fp32, in_bf16;
    for (size_t i = 0; i < expected.size(); ++i) {
      in_fp32.add(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i]));
      in_bf16.add(kernels::narrowed(found[i]), kernels::narrowed(expected[i]));
    }
    expect_near(in_fp32, static_cast<int64_t>(expected.size()));
    expect_near(in_bf16, static_cast<int64_t>(expected.size()));
  }
}

// Where one of them is nearly zero, what is lost of the angle would be many units in the last
// place.
TEST(RandomOnGpus, TurnByTheAngleThatACpuRounds) {
  for (const uint32_t quarter : {0U, 1U << 30U, 2U << 30U, 3U << 30U}) {
    for (const uint32_t word : {quarter - 2, quarter - 1, quarter, quarter + 1, quarter + 12345}) {
      const double u = kernels::open_unit(word);
      const double angle = 2.0 * std::numbers::pi * u;
      double sine = 0, cosine = 0;
      sine_cosine_of_turn(u, sine, cosine);
      EXPECT_EQ(static_cast<float>(sine), static_cast<float>(std::sin(angle))) << word;
      EXPECT_EQ(static_cast<float>(cosine), static_cast<float>(std::cos(angle))) << word;
    }
  }
}

TEST(RandomOnGpus, OfAnyBlocksAreThoseOfTheWhole) {
  const Distribution of = kernels::Normal{0, 1};
  const std::vector<float> whole = drawn_by_kernel(0, 3000, of);
  for (const auto& [first, blocks] : {std::pair(0, 0), std::pair(0, 1), std::pair(1, 255),
                                      std::pair(17, 257), std::pair(2999, 1)}) {
    const std::vector<float> part = drawn_by_kernel(static_cast<uint64_t>(first), blocks, of);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 4 * first)) << first;
  }
}

// Blocks are counted with 64 bits, on a device as on a CPU.
TEST(RandomOnGpus, CountBlocksWithSixtyFourBits) {
  const Distribution of = kernels::Uniform{0, 1};
  const uint64_t far = (uint64_t{1} << 33U) + 5;
  EXPECT_TRUE(are_same(drawn_by_kernel(far, 8, of), drawn_by_cpu(far, 8, of)));
  EXPECT_FALSE(are_same(drawn_by_kernel(5, 8, of), drawn_by_cpu(far, 8, of)));
}

}  // namespace
}  // namespace sherd::cuda
