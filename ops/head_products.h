#pragma once
// The two products of a language model's head that at::mm is slow at: with a vocabulary V far above
// the width D, and several hundred rows.

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// logits [R, V] = hidden [R, D] · weight [V, D]ᵀ, by blocks of 192 to 384 rows: oneDNN's bf16
/// product of 511 rows runs at three quarters of the rate that it reaches on 256.
void head_logits(at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& weight);

/// grad_hidden [R, D] = grad_logits [R, V] · weight [V, D]; above 256 rows as weightᵀ ·
/// grad_logitsᵀ, whose long sums (V) oneDNN blocks better (benchmarks/head_products.cpp). All of
/// one floating-point dtype; the output is allocated by the caller, and the transposed form takes
/// as much again.
void head_input_gradient(at::Tensor& grad_hidden, const at::Tensor& grad_logits,
                         const at::Tensor& weight);

}  // namespace sherd::ops
