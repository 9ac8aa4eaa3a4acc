#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ops/low_rank.h"

namespace sherd::ops {

/// input · weightᵀ, plus the bias where there is one.
/// Shapes: input [..., I], weight [O, I] and bias [O] of the same dtype -> [..., O]. A weight that
/// is frozen may be rows of Q8_0 blocks (ops/q8_0.h), uint8 [O, I ÷ 32 × 34], or the transpose of
/// such; its products dequantize it by tiles, and so do those of the operators below.
/// The weight's gradient is written by the matrix product itself into its GradSlot; the bias's is
/// summed in fp32. Keeps the input where the weight has a gradient.
/// With an `update` it keeps the input too, and r values per row; a frozen weight then takes no
/// product of its own in backward.
/// PyTorch: `torch.nn.functional.linear`.
[[nodiscard]] at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias = std::nullopt,
                                const LowRank& update = {});

/// linear() of what rms_norm(), layer_norm() or one of their sums returned, which it does not keep:
/// where a weight's or an update's gradient needs it, backward has the norm compute it again, once
/// for all that follow the norm. The norm's weight must be in the same unit, since it is read then,
/// and what leads to the norm may go backwards on one thread at a time. Of any other input, and of
/// an output that was changed in place, it is linear().
[[nodiscard]] at::Tensor linear_after_norm(const at::Tensor& input, const at::Tensor& weight,
                                           const std::optional<at::Tensor>& bias = std::nullopt,
                                           const LowRank& update = {});

/// linear_after_norm() of one input with several weights, an output each.
/// Where the back end gains by it (GPUs) and the weights lie side by side in memory, as a sharded
/// unit's do that are registered one after the other, one product makes all outputs, which are then
/// columns of one matrix, one the input's gradient, and one writes all weights' gradients.
/// `biases`: none, or one per weight. `updates`: none, or one per weight, any of them empty; if
/// none has dropout, they share one product with their stacked A's, on any back end.
[[nodiscard]] std::vector<at::Tensor> linears_after_norm(const at::Tensor& input,
                                                         const std::vector<at::Tensor>& weights,
                                                         const std::vector<at::Tensor>& biases = {},
                                                         const std::vector<LowRank>& updates = {});

}  // namespace sherd::ops
