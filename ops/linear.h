#pragma once

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// input · weightᵀ, without bias.
/// Shapes: input [..., I], weight [O, I] of the same dtype -> [..., O].
/// The weight's gradient is written by the matrix product itself into its GradSlot.
/// PyTorch: `torch.nn.functional.linear`.
[[nodiscard]] at::Tensor linear(const at::Tensor& input, const at::Tensor& weight);

}  // namespace sherd::ops
