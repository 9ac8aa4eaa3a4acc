#pragma once
// Linear maps with low-rank updates: one autograd function.

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ops/low_rank.h"

namespace sherd::ops {

/// linears_after_norm() where at least one of `updates` is there, one per weight; without
/// `after_norm`, of any input. `biases`: none, or one per weight.
[[nodiscard]] std::vector<at::Tensor> lora_linears(const at::Tensor& input, at::TensorList weights,
                                                   at::TensorList biases,
                                                   const std::vector<LowRank>& updates,
                                                   bool after_norm);

/// The same of one weight.
[[nodiscard]] at::Tensor lora_linear(const at::Tensor& input, const at::Tensor& weight,
                                     const std::optional<at::Tensor>& bias, const LowRank& update,
                                     bool after_norm);

}  // namespace sherd::ops
