#include "ops/bias_gelu.h"

#include <cmath>

#include <ATen/ops/gelu.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

class BiasGeluTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, BiasGeluTest, dtypes(), dtype_name);

void check_bias_gelu(const std::vector<int64_t>& shape, c10::ScalarType dtype) {
  expect_parity([](const Tensors& in) { return bias_gelu(in[0], in[1]); },
                [](const Tensors& in) { return at::gelu(in[0] + in[1], "tanh"); },
                random_leaves({shape, {shape.back()}}, dtype));
}

TEST_P(BiasGeluTest, AgreesWithThePlainFormula) {
  check_bias_gelu({7, 5}, GetParam());
  check_bias_gelu({3, 5, 17}, GetParam());
  check_bias_gelu({0, 17}, GetParam());
}

TEST_P(BiasGeluTest, TakesInputsOfAnyStrides) {
  expect_parity([](const Tensors& in) { return bias_gelu(in[0].transpose(0, 1), in[1]); },
                [](const Tensors& in) { return at::gelu(in[0].transpose(0, 1) + in[1], "tanh"); },
                random_leaves({{3, 5, 17}, {17}}, GetParam()));
}

TEST(BiasGelu, IsTheTanhForm) {
  const double x = 1.25 + 0.75, inner = 0.7978845608028654 * (x + 0.044715 * x * x * x);
  const at::Tensor found =
      bias_gelu(at::tensor({1.25}, at::kDouble), at::tensor({0.75}, at::kDouble));
  EXPECT_NEAR(found.item<double>(), 0.5 * x * (1 + std::tanh(inner)), 1e-12);
}

}  // namespace
}  // namespace sherd::ops
