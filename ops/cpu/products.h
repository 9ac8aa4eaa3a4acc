#pragma once
// Matrix products in the form that the processor is best at.

#include <ATen/core/Tensor.h>

#include "ops/cpu/isa.h"

namespace sherd::ops::cpu {

/// Whether a path multiplies matrices of a dtype as they are. Where it does not, LibTorch would
/// take ten times as long and more for products of 16 bits.
[[nodiscard]] bool multiplies(c10::ScalarType dtype, Isa isa);

/// Backend::mm, Backend::addmm and Backend::add_mm on the path in use: as the dtype is where the
/// path multiplies it, else in fp32 by blocks that stay in the cache. Beside the output, the second
/// takes an fp32 copy of the smaller operand, and of blocks.
void mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
void addmm(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b);
void add_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

/// logits [R, V] = hidden [R, D] · weight [V, D]ᵀ. With a vocabulary far above the width by blocks
/// of 192 to 384 rows: oneDNN's bf16 product of 511 rows runs at three quarters of the rate that it
/// reaches on 256.
void head_logits(at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& weight);

/// grad_hidden [R, D] = grad_logits [R, V] · weight [V, D]; with a vocabulary far above the width
/// and above 256 rows as weightᵀ · grad_logitsᵀ, whose long sums (V) oneDNN blocks better
/// (benchmarks/head_products.cpp). The transposed form takes as much again as the output.
void head_input_gradient(at::Tensor& grad_hidden, const at::Tensor& grad_logits,
                         const at::Tensor& weight);

/// Backend::mm_room_bytes on the path in use.
[[nodiscard]] int64_t mm_room_bytes(c10::ScalarType out, c10::ScalarType in, int64_t m, int64_t k,
                                    int64_t n);

/// What mm_in_floats() takes beside an output that is `rounded` to 16 bits, or that is in fp32.
[[nodiscard]] int64_t room_bytes_in_floats(bool rounded, int64_t m, int64_t k, int64_t n);

/// out = a · b (+ bias: [1, n] or [m, 1] in fp32, or `out` itself), of 16 bits by fp32 blocks.
void mm_in_floats(const at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
                  const at::Tensor& b);

}  // namespace sherd::ops::cpu
