#pragma once
// Has a GPU run the kernels of ops/cuda/kernels, on raw pointers: plain C++, so that those who
// include it need no compiler for GPUs. Nothing here waits for the GPU.

#include <algorithm>
#include <cstdint>

#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

/// What values are stored in; kernels compute in fp32.
enum class Dtype : std::uint8_t { Float, BFloat16, Half };

/// Of the current device: a cudaStream_t.
using StreamHandle = void*;

/// Kernels read 16 bytes at a time: so many values, of which rows are to be a multiple.
[[nodiscard]] constexpr std::int64_t pack_count(Dtype dtype) {
  return dtype == Dtype::Float ? 4 : 8;
}
/// The widest row of the norms, which keep it in registers.
[[nodiscard]] constexpr std::int64_t widest_norm(Dtype dtype) {
  return 4 * 256 * pack_count(dtype);
}

void launch_norm(Dtype dtype, StreamHandle stream, const NormRows<void>& of, bool is_layer_norm);
/// The parts of the weight's and the bias's gradient that launch_norm_backward() writes.
[[nodiscard]] constexpr std::int64_t norm_parts(std::int64_t rows) {
  return std::min<std::int64_t>(rows, 256);
}
void launch_norm_backward(Dtype dtype, StreamHandle stream, const NormBackwardRows<void>& of,
                          bool is_layer_norm);

void launch_swiglu(Dtype dtype, StreamHandle stream, const SwiGluRows<void>& of);
void launch_swiglu_backward(Dtype dtype, StreamHandle stream, const SwiGluBackwardRows<void>& of);
/// Of `numel` values, a multiple of pack_count().
void launch_bias_gelu(Dtype dtype, StreamHandle stream, const void* input, const void* bias,
                      void* out, std::int64_t numel, std::int64_t width);
/// With sum_parts(rows) parts of the bias's gradient.
void launch_bias_gelu_backward(Dtype dtype, StreamHandle stream,
                               const BiasGeluBackwardRows<void>& of);
void launch_rotary(Dtype dtype, StreamHandle stream, const RotaryHeads<void>& of);

void launch_cross_entropy(Dtype dtype, StreamHandle stream, const LogitRows<void>& of);
/// `scale`: one number on the device; losses are not read.
void launch_cross_entropy_backward(Dtype dtype, StreamHandle stream, const LogitRows<void>& of,
                                   const float* scale);

/// The parts that sums over so many rows are taken in, before the parts are summed.
[[nodiscard]] constexpr std::int64_t sum_parts(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / 256, 1, 128);
}
/// parts [parts, columns] in fp32: sums over the rows of matrix [rows, columns].
void launch_column_sums(Dtype dtype, StreamHandle stream, const void* matrix, float* parts,
                        std::int64_t rows, std::int64_t columns, std::int64_t part_count);

void launch_embedding_gradient(Dtype dtype, StreamHandle stream, const EmbeddingRows<void>& of);

/// Heads of 16 bits with ALiBi's columns (kernels/alibi.cuh): those of queries, of keys, and zeros.
/// `slopes` [heads] and `document_offsets` [documents + 1] on the device; `scale`: what attention
/// multiplies its products by.
void launch_alibi_queries(Dtype dtype, StreamHandle stream, const WiderHeads<void>& of,
                          const float* slopes, double scale);
void launch_alibi_keys(Dtype dtype, StreamHandle stream, const WiderHeads<void>& of,
                       const std::int32_t* document_offsets, int documents);
void launch_wider_heads(Dtype dtype, StreamHandle stream, const WiderHeads<void>& of);
/// The longest document whose positions launch_alibi_keys() writes without rounding.
inline constexpr std::int64_t kLongestWithAlibi = 32'768;

}  // namespace sherd::ops::cuda
