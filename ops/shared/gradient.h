#pragma once
// What the operators' backward passes share.

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "sherd/custom.h"

namespace sherd::ops {

/// Has `compute(out)` fill a tensor of the weight's shape and dtype with the weight's gradient: the
/// unit's reduce buffer where the weight is sharded, and then there is nothing to hand to autograd;
/// else a new tensor. Returns what backward returns for the weight.
template <class Compute>
at::Tensor deliver_gradient(const at::Tensor& weight, Compute&& compute) {
  if (const auto slot = GradSlot::of(weight)) {
    slot.write(std::forward<Compute>(compute));
    return {};
  }
  at::Tensor gradient = at::empty_like(weight);
  compute(gradient);
  return gradient;
}

/// deliver_gradient() of a sum in fp32 or wider, rounded once; nothing for an undefined one.
inline at::Tensor deliver_sum(const at::Tensor& weight, const at::Tensor& sum) {
  if (!sum.defined()) {
    return {};
  }
  return deliver_gradient(weight, [&](at::Tensor& out) { out.copy_(sum); });
}

inline bool any_requires_grad(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

/// For the beginning of a backward pass: throws c10::Error where autograd asks for gradients of
/// gradients (create_graph), instead of leaving terms out of them. PyTorch: `once_differentiable`.
inline void once_differentiable(const char* op) {
  TORCH_CHECK(!at::GradMode::is_enabled(), op,
              " has no second derivative: call backward() without create_graph, or compute this "
              "part with LibTorch's own operators");
}

/// The dtype in which statistics and sums over `dtype` are computed: fp32, or fp64 for fp64.
inline c10::ScalarType statistics_dtype(c10::ScalarType dtype) {
  return c10::promoteTypes(dtype, c10::ScalarType::Float);
}
inline at::TensorOptions wide_options(const at::Tensor& tensor) {
  return tensor.options().dtype(statistics_dtype(tensor.scalar_type()));
}

}  // namespace sherd::ops
