#include "ops/linear.h"

#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

class LinearTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, LinearTest, dtypes(), dtype_name);

void check(const std::vector<std::vector<int64_t>>& shapes, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return ops::linear(in[0], in[1]); },
                [](const Tensors& in) { return at::linear(in[0], in[1]); },
                random_leaves(shapes, dtype));
}

TEST_P(LinearTest, AgreesOnMatrices) {
  check({{7, 5}, {3, 5}}, GetParam());
}
TEST_P(LinearTest, AgreesOnBatches) {
  check({{2, 13, 17}, {19, 17}}, GetParam());
}
TEST_P(LinearTest, AgreesWithoutRows) {
  check({{0, 4, 6}, {3, 6}}, GetParam());
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
