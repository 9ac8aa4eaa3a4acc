#include "ops/rotary.h"

#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

class RotaryTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, RotaryTest, dtypes(), dtype_name);

// Hugging Face's formula: x · cos + rotate_half(x) · sin with tables of the full head size.
at::Tensor plain_rotary(const at::Tensor& input, const RotaryTables& tables) {
  const int64_t half = input.size(-1) / 2;
  const auto twice = [](const at::Tensor& table) { return at::cat({table, table}, -1); };
  const at::Tensor turned = at::cat({-input.slice(-1, half), input.slice(-1, 0, half)}, -1);
  return input * twice(tables.cosine) + turned * twice(tables.sine);
}

TEST_P(RotaryTest, AgreesWithTheFormulaOfHalves) {
  const auto tables = rotary_tables(at::rand({3}, at::kFloat), 11);
  expect_parity([&](const Tensors& in) { return rotary(in[0].transpose(1, 2), tables); },
                [&](const Tensors& in) { return plain_rotary(in[0].transpose(1, 2), tables); },
                random_leaves({{2, 11, 5, 6}}, GetParam()));
}

TEST_P(RotaryTest, TakesAPositionOfItsOwnForEachRow) {
  const auto tables = rotary_tables(at::rand({3}, at::kFloat), 11);
  const at::Tensor positions = at::tensor({4, 9}, at::kLong);
  const auto row = [&](const at::Tensor& t) {
    return t.index_select(0, positions).view({2, 1, 1, 3});
  };
  const RotaryTables rows{row(tables.cosine), row(tables.sine)};
  expect_parity([&](const Tensors& in) { return rotary(in[0], rows); },
                [&](const Tensors& in) { return plain_rotary(in[0], rows); },
                random_leaves({{2, 5, 1, 6}}, GetParam()));
}

TEST(Rotary, TablesAreAnglesOfPositions) {
  const auto tables = rotary_tables(at::full({1}, 0.5, at::kFloat), 4);
  EXPECT_FLOAT_EQ(tables.cosine[3][0].item<float>(), std::cos(1.5F));
  EXPECT_FLOAT_EQ(tables.sine[3][0].item<float>(), std::sin(1.5F));
}

}  // namespace
}  // namespace sherd::ops
