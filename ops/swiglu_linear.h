#pragma once

#include <ATen/core/Tensor.h>

#include "ops/low_rank.h"

namespace sherd::ops {

/// (silu(gate) × up) · weightᵀ: the second half of a gated feed-forward part. Keeps gate and up,
/// and computes their product again in backward.  Paper: GLU variants, arXiv:2002.05202.
/// `update`: added to the product with the weight, of the same input.
/// Shapes: gate and up [..., I], weight [O, I] of the same dtype -> [..., O].
[[nodiscard]] at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up,
                                       const at::Tensor& weight, const LowRank& update = {});

/// The same with gelu in its tanh form (see bias_gelu()) in the place of silu.
[[nodiscard]] at::Tensor geglu_linear(const at::Tensor& gate, const at::Tensor& up,
                                      const at::Tensor& weight, const LowRank& update = {});

}  // namespace sherd::ops
