#include "ops/swiglu_linear.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

class SwiGluLinearTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, SwiGluLinearTest, dtypes(), dtype_name);

void check_swiglu_linear(const std::vector<std::vector<int64_t>>& shapes, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return swiglu_linear(in[0], in[1], in[2]); },
                [](const Tensors& in) { return at::linear(at::silu(in[0]) * in[1], in[2]); },
                random_leaves(shapes, dtype));
}

TEST_P(SwiGluLinearTest, AgreesWithThePlainFormula) {
  check_swiglu_linear({{3, 5, 17}, {3, 5, 17}, {9, 17}}, GetParam());
}
TEST_P(SwiGluLinearTest, AgreesOnMatrices) {
  check_swiglu_linear({{6, 40}, {6, 40}, {3, 40}}, GetParam());
}
TEST_P(SwiGluLinearTest, WithGeluAgreesWithThePlainFormula) {
  for (const auto& leading : {std::vector<int64_t>{3, 5}, {6}, {0}}) {
    std::vector<int64_t> rows = leading;
    rows.push_back(17);
    expect_parity(
        [](const Tensors& in) { return geglu_linear(in[0], in[1], in[2]); },
        [](const Tensors& in) { return at::linear(at::gelu(in[0], "tanh") * in[1], in[2]); },
        random_leaves({rows, rows, {9, 17}}, GetParam()));
  }
}
TEST_P(SwiGluLinearTest, AgreesWithoutRows) {
  check_swiglu_linear({{0, 17}, {0, 17}, {4, 17}}, GetParam());
}

}  // namespace
}  // namespace sherd::ops
