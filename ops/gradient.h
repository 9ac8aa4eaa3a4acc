#pragma once
// What the operators' backward passes share.

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>

#include "sherd/grad_slot.h"

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

/// The dtype in which statistics and sums over `dtype` are computed: fp32, or fp64 for fp64.
inline c10::ScalarType statistics_dtype(c10::ScalarType dtype) {
  return c10::promoteTypes(dtype, c10::ScalarType::Float);
}

}  // namespace sherd::ops
