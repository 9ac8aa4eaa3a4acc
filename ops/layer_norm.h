#pragma once

#include <ATen/core/Tensor.h>

#include "ops/normalised_sum.h"

namespace sherd::ops {

/// (input − mean) ÷ sqrt(variance + epsilon) × weight + bias over the last dimension. Statistics,
/// normalisation and both parameters' part in fp32, rounded to the input's dtype once at the end.
/// Shapes: input [..., D], weight and bias [D] of the same dtype -> [..., D]. Keeps the input and
/// two fp32 numbers a row; gradients of weight and bias are summed in fp32.
/// PyTorch: `torch.nn.functional.layer_norm`.  Paper: arXiv:1607.06450.
[[nodiscard]] at::Tensor layer_norm(const at::Tensor& input, const at::Tensor& weight,
                                    const at::Tensor& bias, double epsilon);

/// layer_norm() of input + residual, and that sum: one pass each way instead of two.
/// Shapes: input and residual [..., D], weight and bias [D] of the same dtype. Keeps the sum and
/// two fp32 numbers a row.
[[nodiscard]] NormalisedSum add_layer_norm(const at::Tensor& input, const at::Tensor& residual,
                                           const at::Tensor& weight, const at::Tensor& bias,
                                           double epsilon);

}  // namespace sherd::ops
