#pragma once

#include <ATen/core/Tensor.h>

#include "ops/normalised_sum.h"
#include "ops/rms_gain.h"

namespace sherd::ops {

/// input ÷ sqrt(mean(input²) + epsilon) × weight over the last dimension. Statistics and
/// normalisation in fp32; `gain` says when the result is rounded to the input's dtype, and whether
/// the weight counts from 1.
/// Shapes: input [..., D], weight [D] of the same dtype -> [..., D]. Keeps the input and one fp32
/// number a row.  PyTorch: `torch.nn.functional.rms_norm`.  Paper: RMSNorm, arXiv:1910.07467.
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon,
                                  RmsGain gain = RmsGain::Rounded);

/// rms_norm() of input + residual, and that sum: one pass each way instead of two.
/// Shapes: input and residual [..., D], weight [D] of the same dtype. Keeps the sum and one fp32
/// number a row.
[[nodiscard]] NormalisedSum add_rms_norm(const at::Tensor& input, const at::Tensor& residual,
                                         const at::Tensor& weight, double epsilon,
                                         RmsGain gain = RmsGain::Rounded);

}  // namespace sherd::ops
