#pragma once
// The sum of a weight and its adapter.

#include <ATen/core/Tensor.h>

namespace llm::adapters {

/// W + scale · B · A in fp32: what the adapted map computes with one product. Shapes: W [O, I], or
/// [I, O] if `is_transposed` (has_transposed_weights()), A [R, I], B [O, R], all fp32 on the CPU.
/// PEFT: `merge_and_unload`, which sums in the weight's dtype.
[[nodiscard]] at::Tensor merged_weight(const at::Tensor& weight, const at::Tensor& a,
                                       const at::Tensor& b, double scale, bool is_transposed);

}  // namespace llm::adapters
