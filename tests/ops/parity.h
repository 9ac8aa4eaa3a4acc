#pragma once
// Compares an operator with the plain ATen formula, values and gradients.

#include <functional>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

namespace sherd::ops {

using Tensors = std::vector<at::Tensor>;
using Formula = std::function<at::Tensor(const Tensors&)>;

/// Leaves of the given shapes, drawn from N(0, 1) and rounded to `dtype`.
inline Tensors random_leaves(const std::vector<std::vector<int64_t>>& shapes,
                             c10::ScalarType dtype) {
  Tensors leaves;
  for (const auto& shape : shapes) {
    leaves.push_back(at::randn(shape, at::kDouble).to(dtype).requires_grad_());
  }
  return leaves;
}

/// Copies of leaves in another dtype.
inline Tensors leaves_as(const Tensors& leaves, c10::ScalarType dtype) {
  Tensors copies;
  for (const auto& leaf : leaves) {
    copies.push_back(leaf.detach()
                         .to(dtype, /*non_blocking=*/false, /*copy=*/true)
                         .requires_grad_(leaf.requires_grad()));
  }
  return copies;
}

/// `size`: how large such values are as a rule, where the few there are may be next to nothing by
/// chance; otherwise the largest of `expected` itself.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                         const char* what, const at::Tensor& size = {}) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) {
    return;
  }
  const at::Tensor wide = expected.to(at::kDouble);
  const double scale = (size.defined() ? size : wide).abs().max().item<double>() + 1e-30;
  const double difference = (actual.to(at::kDouble) - wide).abs().max().item<double>();
  EXPECT_TRUE(difference <= tolerance * scale)
      << what << " differs by " << difference << " of " << scale;
}

/// A gradient for `output` whose memory is not contiguous.
inline at::Tensor strided_gradient(const at::Tensor& output) {
  std::vector<int64_t> sizes = output.sizes().vec();
  sizes.push_back(2);
  return at::randn(sizes, at::kDouble).to(output.scalar_type()).select(-1, 1);
}

/// Largest difference allowed, of the largest value.
inline double tolerance_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return 1e-5;
    case at::kHalf:
      return 4e-3;
    default:
      return 3e-2;
  }
}

/// Expects `op` on `leaves` to give the values and gradients that `plain` gives in fp64.
inline void expect_parity(const Formula& op, const Formula& plain, const Tensors& leaves) {
  const auto dtype = leaves.front().scalar_type();
  const double tolerance = tolerance_of(dtype);
  const Tensors exact = leaves_as(leaves, at::kDouble);
  const at::Tensor actual = op(leaves);
  const at::Tensor expected = plain(exact);
  expect_close(actual, expected, tolerance, "value");
  const at::Tensor gradient = strided_gradient(actual);
  torch::autograd::backward({actual}, {gradient});
  torch::autograd::backward({expected}, {gradient.to(at::kDouble)});
  for (size_t i = 0; i < leaves.size(); ++i) {
    SCOPED_TRACE("input " + std::to_string(i));
    ASSERT_TRUE(leaves[i].grad().defined());
    EXPECT_EQ(leaves[i].grad().scalar_type(), dtype);
    expect_close(leaves[i].grad(), exact[i].grad(), tolerance, "gradient");
  }
}

/// Runs a test in every dtype that operators compute in.
class EveryDtype : public testing::TestWithParam<c10::ScalarType> {};
inline auto dtypes() {
  return testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf);
}
inline std::string dtype_name(const testing::TestParamInfo<c10::ScalarType>& info) {
  return c10::toString(info.param);
}

}  // namespace sherd::ops
