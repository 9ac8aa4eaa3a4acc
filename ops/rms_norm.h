#pragma once

#include <ATen/core/Tensor.h>

#include "ops/normalised_sum.h"

namespace sherd::ops {

/// input ÷ sqrt(mean(input²) + epsilon) × weight over the last dimension. Statistics and
/// normalisation in fp32, rounded to the input's dtype before the product with the weight, as
/// Hugging Face's Llama does.
/// Shapes: input [..., D], weight [D] of the same dtype -> [..., D]. Keeps the input and one fp32
/// number a row.  PyTorch: `torch.nn.functional.rms_norm`.  Paper: RMSNorm, arXiv:1910.07467.
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight,
                                  double epsilon);

/// rms_norm() of input + residual, and that sum: one pass each way instead of two.
/// Shapes: input and residual [..., D], weight [D] of the same dtype. Keeps the sum and one fp32
/// number a row.
[[nodiscard]] NormalisedSum add_rms_norm(const at::Tensor& input, const at::Tensor& residual,
                                         const at::Tensor& weight, double epsilon);

}  // namespace sherd::ops
