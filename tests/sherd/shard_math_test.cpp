// Arithmetic on shards: the same bits on any number of threads.

#include "src/kernels/shard_math.h"

#include <bit>
#include <cmath>
#include <limits>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/support/seeded.h"
#include "tests/support/with_threads.h"

namespace sherd::detail {
namespace {

constexpr int64_t kNumel = (int64_t{1} << 20) + 12345;  // three parts

struct Outcome {
  std::vector<at::Tensor> tensors;
  double squares = 0;
};

Outcome compute(int threads, c10::ScalarType moments) {
  const test::WithThreads with(threads);
  return test::seeded(5, [&] {
    const at::Tensor sum = at::randn({kNumel});
    const at::Tensor halves = at::randn({kNumel}).to(at::kBFloat16);
    shard_math::sum_in_rank_order(sum, /*accumulate=*/true, 0.5F, {halves, halves});
    const double squares =
        shard_math::sum_in_rank_order(sum, /*accumulate=*/true, 0.25F, {at::randn({kNumel})});
    EXPECT_EQ(squares, shard_math::sum_of_squares(sum));
    shard_math::scale_in_place(sum, 1.5F);
    shard_math::AdamWTensors tensors{at::randn({kNumel}),
                                     at::zeros({kNumel}, moments),
                                     at::zeros({kNumel}, moments),
                                     sum,
                                     at::empty({kNumel}, at::kBFloat16),
                                     7};
    const kernels::AdamWStep step{.step_size = 0.1F,
                                  .one_minus_beta1 = 0.1F,
                                  .beta2 = 0.99F,
                                  .one_minus_beta2 = 0.01F,
                                  .eps = 1e-6F,
                                  .number = 3};
    shard_math::adamw(tensors, step);
    const at::Tensor rounded = at::empty({kNumel}, at::kBFloat16);
    shard_math::round_into(tensors.master, rounded);
    return Outcome{
        {sum, tensors.master, tensors.exp_avg, tensors.exp_avg_sq, tensors.travelling, rounded},
        shard_math::sum_of_squares(sum)};
  });
}

TEST(ShardMath, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const auto moments : {at::kFloat, at::kBFloat16}) {
    const Outcome one = compute(1, moments);
    for (const int threads : {2, 3}) {
      const Outcome several = compute(threads, moments);
      EXPECT_EQ(one.squares, several.squares);
      for (size_t i = 0; i < one.tensors.size(); ++i) {
        EXPECT_TRUE(at::equal(one.tensors[i], several.tensors[i])) << i << ", " << threads;
      }
    }
  }
}

// Where there are no loops of one's own, LibTorch's operators draw the same bits.
TEST(ShardMath, RoundsAtRandomByTheSameNoiseOnEveryDevice) {
  constexpr int64_t kFirst = (int64_t{1} << 32) - 5;  // past 32 bits
  constexpr int64_t kCount = 4096;
  const at::Tensor noise = shard_math::rounding_noise(kFirst, kCount, 77, at::kCPU);
  at::Tensor values = test::seeded(6, [] { return at::randn({kCount}); });
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[4] = std::numeric_limits<float>::infinity();
  const at::Tensor rounded = at::empty({kCount}, at::kBFloat16);
  shard_math::round_at_random(values, rounded, noise);
  for (int64_t i = 0; i < kCount; ++i) {
    const uint32_t expected = kernels::rounding_noise(static_cast<uint64_t>(kFirst + i), 77);
    ASSERT_EQ(noise[i].item<int64_t>(), expected) << i;
    const auto bits = std::bit_cast<uint32_t>(values[i].item<float>());
    const auto found = rounded[i].item<at::BFloat16>();
    if (i == 3) {
      EXPECT_TRUE(std::isnan(static_cast<float>(found)));
    } else {
      ASSERT_EQ(found.x, (bits + (expected & 0xffffU)) >> 16) << i;
    }
  }
}

}  // namespace
}  // namespace sherd::detail
