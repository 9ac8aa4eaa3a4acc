// Dropout by counters: which elements are kept, on which back end, and how it goes backwards.

#include "ops/dropout.h"

#include <limits>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "ops/linear.h"
#include "ops/plain_operators.h"
#include "ops/swiglu_linear.h"
#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

class DropoutTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, DropoutTest, dtypes(), dtype_name);

at::Tensor keys_of(int64_t rows) {
  return at::randint(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                     {rows}, at::kLong);
}

at::Tensor mask_of(const Dropout& dropout, int64_t columns) {
  return ops::dropout(at::ones({dropout.row_keys.size(0), columns}), dropout).ne(0);
}

TEST(Dropout, IsTheStreamThatItsDefinitionNames) {
  const Dropout dropout{0.5, at::tensor(std::vector<int64_t>{0, -1}, at::kLong), 7};
  uint64_t key = 7;
  for (int64_t row = 0; row < 2; ++row) {
    uint64_t state = row == 0 ? key : key - 1;
    for (int64_t column = 0; column < 5; ++column) {
      state += 0x9E3779B97F4A7C15;
      const bool is_kept = static_cast<double>(mixed(state) >> 11U) * 0x1p-53 >= 0.5;
      EXPECT_EQ(mask_of(dropout, 5)[row][column].item<bool>(), is_kept) << row << " " << column;
    }
  }
  EXPECT_EQ(mixed(0x9E3779B97F4A7C15), 0xE220A8397B1DCDAF);  // SplitMix64's first word of seed 0
}

TEST_P(DropoutTest, HasTheSameBitsOnEveryBackEnd) {
  const at::Tensor rows = at::randn({37, 129}, at::kDouble).to(GetParam());
  const Dropout dropout{0.3, keys_of(37), 0xFEDCBA9876543210};
  const at::Tensor found = ops::dropout(rows, dropout);
  const PlainOperators plain;
  EXPECT_TRUE(at::equal(found, ops::dropout(rows, dropout)));
}

TEST(Dropout, KeepsTheFractionAndTheMean) {
  const Dropout dropout{0.1, keys_of(400), 3};
  const at::Tensor found = ops::dropout(at::ones({400, 500}), dropout);
  EXPECT_NEAR(found.ne(0).to(at::kFloat).mean().item<double>(), 0.9, 0.003);
  EXPECT_NEAR(found.mean().item<double>(), 1, 0.003);
}

TEST(Dropout, OfARowDependsOnItsKeyAndTheModuleAlone) {
  const at::Tensor keys = keys_of(6);
  const auto mask = [&](const at::Tensor& of, uint64_t module_key) {
    return mask_of({0.5, of, module_key}, 200);
  };
  EXPECT_TRUE(at::equal(mask(keys, 1).narrow(0, 2, 3), mask(keys.narrow(0, 2, 3), 1)));
  EXPECT_FALSE(at::equal(mask(keys, 1), mask(keys, 2)));
  EXPECT_FALSE(at::equal(mask(keys, 1)[0], mask(keys, 1)[1]));
}

TEST(Dropout, OfNothingIsTheInput) {
  const at::Tensor rows = at::ones({3, 4});
  EXPECT_TRUE(ops::dropout(rows, {0, keys_of(3), 1}).is_same(rows));
  EXPECT_TRUE(ops::dropout(rows, {0.5, {}, 1}).is_same(rows));
  EXPECT_THROW(static_cast<void>(ops::dropout(rows, {0.5, keys_of(2), 1})), c10::Error);
}

// Each update has a mask of its own.
TEST_P(DropoutTest, OfUpdatesAgreesWithThePlainFormula) {
  const at::Tensor keys = keys_of(12);
  const Dropout first{0.4, keys, 1}, second{0.4, keys, 2};
  const auto masked = [](const at::Tensor& x, const Dropout& dropout) {
    return x * mask_of(dropout, x.size(1)).to(x.scalar_type()) / 0.6;
  };
  expect_parity(
      [&](const Tensors& in) {
        const Tensors out =
            linears_after_norm(in[0], {in[1], in[2]}, {},
                               {{.A = in[3], .B = in[4], .scale = 2, .dropout = first},
                                {.A = in[5], .B = in[6], .scale = 3, .dropout = second}});
        return at::cat({out[0], out[1]}, -1);
      },
      [&](const Tensors& in) {
        const auto update = [&](size_t a, const Dropout& dropout) {
          return at::linear(at::linear(masked(in[0], dropout), in[a]), in[a + 1]);
        };
        return at::cat({at::linear(in[0], in[1]) + update(3, first) * 2,
                        at::linear(in[0], in[2]) + update(5, second) * 3},
                       -1);
      },
      random_leaves({{12, 16}, {8, 16}, {5, 16}, {2, 16}, {8, 2}, {3, 16}, {5, 3}}, GetParam()));
  expect_parity(
      [&](const Tensors& in) {
        return swiglu_linear(in[0], in[1], in[2], {.A = in[3], .B = in[4], .dropout = first});
      },
      [&](const Tensors& in) {
        const at::Tensor product = at::silu(in[0]) * in[1];
        return at::linear(product, in[2]) +
               at::linear(at::linear(masked(product, first), in[3]), in[4]);
      },
      random_leaves({{12, 16}, {12, 16}, {8, 16}, {2, 16}, {8, 2}}, GetParam()));
}

TEST_P(DropoutTest, GoesBackwardsByTheSameMask) {
  const Dropout dropout{0.25, keys_of(6), 9};
  expect_parity([&](const Tensors& in) { return ops::dropout(in[0], dropout); },
                [&](const Tensors& in) {
                  return in[0] * mask_of(dropout, 16).view({2, 3, 16}).to(at::kDouble) / 0.75;
                },
                random_leaves({{2, 3, 16}}, GetParam()));
}

}  // namespace
}  // namespace sherd::ops
