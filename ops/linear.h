#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// input · weightᵀ, plus the bias where there is one.
/// Shapes: input [..., I], weight [O, I] and bias [O] of the same dtype -> [..., O].
/// The weight's gradient is written by the matrix product itself into its GradSlot; the bias's is
/// summed in fp32.
/// PyTorch: `torch.nn.functional.linear`.
[[nodiscard]] at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace sherd::ops
