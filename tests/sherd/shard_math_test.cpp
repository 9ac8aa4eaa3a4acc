// Arithmetic on shards: the same bits on any number of threads.

#include "src/kernels/shard_math.h"

#include <cmath>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>

#include "tests/support/seeded.h"
#include "tests/support/with_threads.h"

namespace sherd::detail {
namespace {

constexpr int64_t kNumel = (int64_t{1} << 20) + 12345;  // three parts

double squares_of(const at::Tensor& values) {
  return shard_math::sum_of_squares_on_device(values).item<double>();
}

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
    EXPECT_EQ(squares, squares_of(sum));
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
        squares_of(sum)};
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

// Every one, infinities and NaN among them.
void expect_all_widened() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float expected = static_cast<float>(at::Half(half, at::Half::from_bits()));
    const float found = kernels::widened(kernels::Float16{half});
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found)) << bits;
    } else {
      EXPECT_EQ(kernels::bits_of(found), kernels::bits_of(expected)) << bits;
    }
  }
}

TEST(ShardMath, WidensFp16AsLibTorchDoes) {
  expect_all_widened();
}

TEST(ShardMath, WidensFp16WhereSubnormalsAreFlushed) {
  const auto as_before = c10::make_scope_exit([] { at::globalContext().setFlushDenormal(false); });
  if (!at::globalContext().setFlushDenormal(true)) {
    GTEST_SKIP() << "SKIPPED: this processor cannot flush subnormal numbers to zero";
  }
  expect_all_widened();
}

}  // namespace
}  // namespace sherd::detail
