#include "ops/layer_norm.h"

#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

constexpr double kEpsilon = 1e-5;

class LayerNormTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, LayerNormTest, dtypes(), dtype_name);

at::Tensor plain_layer_norm(const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias) {
  return at::layer_norm(input, {input.size(-1)}, weight, bias, kEpsilon);
}

void check_layer_norm(const std::vector<int64_t>& shape, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return ops::layer_norm(in[0], in[1], in[2], kEpsilon); },
                [](const Tensors& in) { return plain_layer_norm(in[0], in[1], in[2]); },
                random_leaves({shape, {shape.back()}, {shape.back()}}, dtype));
}

TEST_P(LayerNormTest, AgreesOnMatrices) {
  check_layer_norm({9, 7}, GetParam());
}
TEST_P(LayerNormTest, AgreesOnBatches) {
  check_layer_norm({2, 13, 33}, GetParam());
}
TEST_P(LayerNormTest, AgreesWithoutRows) {
  check_layer_norm({0, 3, 8}, GetParam());
}

TEST_P(LayerNormTest, TakesInputsOfAnyStrides) {
  expect_parity(
      [](const Tensors& in) {
        return ops::layer_norm(in[0].transpose(0, 1), in[1], in[2], kEpsilon);
      },
      [](const Tensors& in) { return plain_layer_norm(in[0].transpose(0, 1), in[1], in[2]); },
      random_leaves({{5, 3, 11}, {11}, {11}}, GetParam()));
}

TEST_P(LayerNormTest, OfASumAgrees) {
  expect_parity(
      [](const Tensors& in) {
        const auto [sum, normalised] = add_layer_norm(in[0], in[1], in[2], in[3], kEpsilon);
        return sum + normalised * 2;
      },
      [](const Tensors& in) {
        const at::Tensor sum = in[0] + in[1];
        return sum + plain_layer_norm(sum, in[2], in[3]) * 2;
      },
      random_leaves({{5, 3, 33}, {5, 3, 33}, {33}, {33}}, GetParam()));
}

TEST_P(LayerNormTest, OfASumAgreesWhereTheSumIsNotUsed) {
  expect_parity(
      [](const Tensors& in) {
        return add_layer_norm(in[0], in[1], in[2], in[3], kEpsilon).normalised;
      },
      [](const Tensors& in) { return plain_layer_norm(in[0] + in[1], in[2], in[3]); },
      random_leaves({{4, 40}, {4, 40}, {40}, {40}}, GetParam()));
}

TEST(LayerNorm, EpsilonKeepsConstantRowsFinite) {
  const at::Tensor one = at::full({4}, 1.0, at::kFloat), zero = at::full({4}, 0.0, at::kFloat);
  EXPECT_EQ(ops::layer_norm(at::full({1, 4}, 3.0, at::kFloat), one, zero, kEpsilon)
                .abs()
                .max()
                .item<float>(),
            0);
}

TEST(LayerNorm, RoundsOnceInBf16) {
  const Tensors in = leaves_as(random_leaves({{16, 64}, {64}, {64}}, at::kBFloat16), at::kFloat);
  const Tensors narrow = leaves_as(in, at::kBFloat16);
  const at::Tensor actual =
      ops::layer_norm((in[0] + 100).to(at::kBFloat16), narrow[1], narrow[2], kEpsilon);
  const at::Tensor rounded =
      plain_layer_norm((in[0] + 100).to(at::kBFloat16).to(at::kFloat), in[1], in[2])
          .to(at::kBFloat16);
  expect_close(actual, rounded, 1e-2, "value");
  EXPECT_EQ(actual.scalar_type(), at::kBFloat16);
}

TEST(LayerNorm, ComputesNoGradientThatNobodyWants) {
  const Tensors leaves = random_leaves({{4, 6}, {6}, {6}}, at::kFloat);
  leaves[1].requires_grad_(false);
  ops::layer_norm(leaves[0], leaves[1], leaves[2], kEpsilon).sum().backward();
  EXPECT_TRUE(leaves[0].grad().defined());
  EXPECT_FALSE(leaves[1].grad().defined());
  EXPECT_TRUE(leaves[2].grad().defined());
}

}  // namespace
}  // namespace sherd::ops
