// Operators give the same on several threads as on one.

#include <atomic>

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "ops/bias_gelu.h"
#include "ops/cpu/dispatch.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"
#include "ops/swiglu_linear.h"
#include "tests/ops/parity.h"
#include "tests/ops/rows_attention.h"
#include "tests/support/with_threads.h"

namespace sherd::ops {
namespace {

// Value and gradients of a formula.
Tensors results(const Formula& formula, const Tensors& leaves, int threads) {
  const test::WithThreads with(threads);
  const Tensors inputs = leaves_as(leaves, leaves.front().scalar_type());
  const at::Tensor value = formula(inputs);
  value.to(at::kFloat).square().sum().backward();
  Tensors all = {value.detach()};
  for (const at::Tensor& input : inputs) {
    all.push_back(input.grad());
  }
  return all;
}

void expect_same(const char* name, const Formula& formula,
                 const std::vector<std::vector<int64_t>>& shapes) {
  SCOPED_TRACE(name);
  const Tensors leaves = random_leaves(shapes, at::kFloat);
  const Tensors expected = results(formula, leaves, 1);
  const Tensors actual = results(formula, leaves, 3);
  for (size_t i = 0; i < expected.size(); ++i) {
    expect_close(actual[i], expected[i], 1e-5, i == 0 ? "value" : "gradient");
  }
}

TEST(Threads, TakePartInLoops) {
  const test::WithThreads with(3);
  std::atomic<int> calls = 0;
  cpu::for_rows(300, 4096, [&](int64_t /*begin*/, int64_t /*end*/) { ++calls; });
  EXPECT_EQ(calls, 3) << "built without LibTorch's OpenMP (cmake/LibTorch.cmake)";
}

TEST(Threads, TakeSubnormalNumbersForZeroInLoops) {
  const test::WithThreads with(3);
  volatile float small = 1e-30F;
  volatile float smaller = 1e-10F;
  ASSERT_GT(small * smaller, 0.0F);
  std::atomic<int> zeros = 0;
  cpu::for_rows(300, 4096, [&](int64_t /*begin*/, int64_t /*end*/) {
    zeros += small * smaller == 0.0F ? 1 : 0;
  });
  EXPECT_EQ(zeros, 3);
  EXPECT_GT(small * smaller, 0.0F) << "the caller's numbers are its own";
}

TEST(Threads, ChangeNoOperator) {
  constexpr int64_t kRows = 500;
  constexpr int64_t kColumns = 320;
  const at::Tensor targets = at::randint(2600, {kRows}, at::kLong);
  const RotaryTables tables = rotary_tables(at::arange(1, 33).to(at::kFloat).reciprocal(), 300);
  expect_same("linear", [](const Tensors& in) { return ops::linear(in[0], in[1], in[2]); },
              {{kRows, kColumns}, {400, kColumns}, {400}});
  expect_same("rms_norm", [](const Tensors& in) { return rms_norm(in[0], in[1], 1e-6); },
              {{kRows, kColumns}, {kColumns}});
  expect_same("layer_norm", [](const Tensors& in) { return layer_norm(in[0], in[1], in[2], 1e-5); },
              {{kRows, kColumns}, {kColumns}, {kColumns}});
  expect_same("bias_gelu", [](const Tensors& in) { return bias_gelu(in[0], in[1]); },
              {{kRows, kColumns}, {kColumns}});
  expect_same("swiglu_linear", [](const Tensors& in) { return swiglu_linear(in[0], in[1], in[2]); },
              {{kRows, kColumns}, {kRows, kColumns}, {100, kColumns}});
  expect_same("rotary", [&](const Tensors& in) { return rotary(in[0], tables); },
              {{2, 4, 300, 64}});
  expect_same("attention", [](const Tensors& in) { return rows_attention(in[0], in[1], in[2]); },
              {{2, 4, 300, 64}, {2, 2, 300, 64}, {2, 2, 300, 64}});
  expect_same("linear_cross_entropy",
              [&](const Tensors& in) { return linear_cross_entropy(in[0], in[1], targets); },
              {{kRows, kColumns}, {2600, kColumns}});
}

}  // namespace
}  // namespace sherd::ops
