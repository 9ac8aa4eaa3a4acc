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
/// The widest row of the norms' forward, which keeps it in registers.
[[nodiscard]] constexpr std::int64_t widest_norm(Dtype dtype) {
  return 4 * 1024 * pack_count(dtype);
}

void launch_norm(Dtype dtype, StreamHandle stream, const NormRows<void>& of, bool is_layer_norm);

/// Warps that hold a row in backward, two packs per thread: 1, 2, 4, 8 or 16; 0 where the row is
/// too wide for that, and backward reads it twice.
[[nodiscard]] constexpr int norm_row_warps(Dtype dtype, std::int64_t width) {
  constexpr int kMostWarps = 16, kValuesPerWarp = 2 * 32;
  for (int warps = 1; warps <= kMostWarps; warps *= 2) {
    if (width <= warps * kValuesPerWarp * pack_count(dtype)) {
      return warps;
    }
  }
  return 0;
}
/// The parts that sums over so many rows are taken in, before the parts are summed.
[[nodiscard]] constexpr std::int64_t sum_parts(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / 256, 1, 128);
}
/// The parts of the weight's gradient, and of the bias's where a block holds rows, that
/// launch_norm_backward() writes. The shape alone decides: no more than the blocks that an H100
/// runs at once.
[[nodiscard]] constexpr std::int64_t norm_parts(Dtype dtype, std::int64_t rows,
                                                std::int64_t width) {
  const int warps = norm_row_warps(dtype, width);
  const std::int64_t rows_at_once = warps == 0 ? 0 : std::max(1, 8 / warps);
  return warps == 0 ? sum_parts(rows)
                    : std::min<std::int64_t>((rows + rows_at_once - 1) / rows_at_once, 256);
}
/// Writes no bias_parts where norm_row_warps() is 0: they are sums over the rows of `grad`.
void launch_norm_backward(Dtype dtype, StreamHandle stream, const NormBackwardRows<void>& of,
                          bool is_layer_norm);

void launch_swiglu(Dtype dtype, StreamHandle stream, const SwiGluRows<void>& of);
void launch_swiglu_backward(Dtype dtype, StreamHandle stream, const SwiGluBackwardRows<void>& of);
void launch_geglu(Dtype dtype, StreamHandle stream, const SwiGluRows<void>& of);
void launch_geglu_backward(Dtype dtype, StreamHandle stream, const SwiGluBackwardRows<void>& of);
/// Of `numel` values, a multiple of pack_count().
void launch_bias_gelu(Dtype dtype, StreamHandle stream, const void* input, const void* bias,
                      void* out, std::int64_t numel, std::int64_t width);
/// With sum_parts(rows) parts of the bias's gradient.
void launch_bias_gelu_backward(Dtype dtype, StreamHandle stream,
                               const BiasGeluBackwardRows<void>& of);
void launch_rotary(Dtype dtype, StreamHandle stream, const RotaryHeads<void>& of);

void launch_cross_entropy(Dtype dtype, StreamHandle stream, const LogitRows<void>& of);
/// `scale`: one number on the device, or one per row (LogitRows::scale_stride); losses are not
/// read.
void launch_cross_entropy_backward(Dtype dtype, StreamHandle stream, const LogitRows<void>& of,
                                   const float* scale);

/// Q8_0 blocks as numbers of a dtype.
void launch_dequantize(Dtype dtype, StreamHandle stream, const QuantizedRows<void>& of);

/// parts [parts, columns] in fp32: sums over the rows of matrix [rows, columns].
void launch_column_sums(Dtype dtype, StreamHandle stream, const void* matrix, float* parts,
                        std::int64_t rows, std::int64_t columns, std::int64_t part_count);

/// The most ids that launch_sorted_ids() takes: it compares each with each.
inline constexpr std::int64_t kMostComparedIds = 16'384;
/// Sorts ids [count] in 32 bits, stably: `sorted` [count], and where each came from, `order`
/// [count].
void launch_sorted_ids(StreamHandle stream, const std::int64_t* ids, std::int64_t count,
                       std::int32_t* sorted, std::int64_t* order);
/// `gradient`'s dtype and out's: the same, or fp32 for `out`.
void launch_embedding_gradient(Dtype gradient, Dtype out, StreamHandle stream,
                               const EmbeddingRows<void, void>& of);

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
