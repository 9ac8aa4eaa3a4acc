#include "ops/linear.h"

#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

class LinearTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, LinearTest, dtypes(), dtype_name);

void check_linear(const std::vector<std::vector<int64_t>>& shapes, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return ops::linear(in[0], in[1]); },
                [](const Tensors& in) { return at::linear(in[0], in[1]); },
                random_leaves(shapes, dtype));
}

TEST_P(LinearTest, AgreesOnMatrices) {
  check_linear({{7, 5}, {3, 5}}, GetParam());
}
TEST_P(LinearTest, AgreesOnBatches) {
  check_linear({{2, 13, 17}, {19, 17}}, GetParam());
}
TEST_P(LinearTest, AgreesWithoutRows) {
  check_linear({{0, 4, 6}, {3, 6}}, GetParam());
}

void check_with_bias(const std::vector<std::vector<int64_t>>& shapes, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return ops::linear(in[0], in[1], in[2]); },
                [](const Tensors& in) { return at::linear(in[0], in[1], in[2]); },
                random_leaves(shapes, dtype));
}

TEST_P(LinearTest, AgreesWithABias) {
  check_with_bias({{7, 5}, {3, 5}, {3}}, GetParam());
  check_with_bias({{2, 13, 17}, {19, 17}, {19}}, GetParam());
  check_with_bias({{0, 4, 6}, {3, 6}, {3}}, GetParam());
}

TEST(Linear, SumsTheBiasGradientWithoutLosingSmallTermsInBf16) {
  const Tensors leaves = random_leaves({{400, 3}, {2, 3}, {2}}, at::kBFloat16);
  ops::linear(leaves[0], leaves[1], leaves[2]).sum().backward();
  EXPECT_EQ(leaves[2].grad()[1].item<float>(), 400.0F);  // added one by one in bf16: 256
}

TEST(Linear, ABiasMayBeFrozenOrAloneInLearning) {
  for (const bool frozen : {true, false}) {
    const Tensors leaves = random_leaves({{4, 6}, {5, 6}, {5}}, at::kFloat);
    leaves[2].requires_grad_(!frozen);
    leaves[1].requires_grad_(frozen);
    ops::linear(leaves[0], leaves[1], leaves[2]).sum().backward();
    EXPECT_EQ(leaves[1].grad().defined(), frozen);
    EXPECT_EQ(leaves[2].grad().defined(), !frozen);
  }
}

TEST(Linear, TakesInputsOfAnyStrides) {
  const Tensors leaves = random_leaves({{4, 3, 6}, {5, 6}}, at::kFloat);
  expect_parity([](const Tensors& in) { return ops::linear(in[0].transpose(0, 1), in[1]); },
                [](const Tensors& in) { return at::linear(in[0].transpose(0, 1), in[1]); }, leaves);
}

TEST(Linear, ComputesNoGradientThatNobodyWants) {
  const Tensors leaves = random_leaves({{4, 6}, {5, 6}}, at::kFloat);
  leaves[1].requires_grad_(false);
  ops::linear(leaves[0], leaves[1]).sum().backward();
  EXPECT_TRUE(leaves[0].grad().defined());
  EXPECT_FALSE(leaves[1].grad().defined());
}

}  // namespace
}  // namespace sherd::ops
