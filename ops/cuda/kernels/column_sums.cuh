#pragma once
// Sums over the rows of a matrix, in an order that does not depend on the threads': blocks sum
// parts of the rows, and the same kernel sums the parts.

#include "gpu/block.cuh"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// Columns that a block sums: a pack for each thread of a warp.
template <int kCount>
inline constexpr int kTile = gpu::kWarp* kCount;

/// parts [parts, columns]: the sums over a part of the rows each, of `values(row, column, to)`, a
/// pack's; with null for `parts` they are computed and not summed. `columns` a multiple of kCount.
/// Blocks: parts × ⌈columns ÷ kTile⌉. A warp takes a row at a time, and sums are joined in the
/// order of the warps. All of a block's threads call it.
template <int kThreads, int kCount, class Values>
GPU_FUNCTION void sum_columns(float* parts, std::int64_t rows, std::int64_t columns,
                              const Values& values) {
  constexpr int kWarps = kThreads / gpu::kWarp;
  GPU_SHARED(float, of_warps, kWarps* kTile<kCount>);
  const std::int64_t tiles = (columns + kTile<kCount> - 1) / kTile<kCount>;
  const std::int64_t part = gpu::block_index() / tiles, count = gpu::block_count() / tiles;
  const std::int64_t first = gpu::block_index() % tiles * kTile<kCount>;
  const int warp = gpu::thread_index() / gpu::kWarp;
  const int at = gpu::thread_index() % gpu::kWarp * kCount;
  float sums[kCount] = {};
  const std::int64_t end = first + at < columns ? (part + 1) * rows / count : 0;
  for (std::int64_t row = part * rows / count + warp; row < end; row += kWarps) {
    float of_row[kCount];
    values(row, first + at, of_row);
    for (int i = 0; i < kCount; ++i) {
      sums[i] += of_row[i];
    }
  }
  if (parts == nullptr) {
    return;
  }
  for (int i = 0; i < kCount; ++i) {
    of_warps[warp * kTile<kCount> + at + i] = sums[i];
  }
  gpu::sync_block();
  for (int i = gpu::thread_index(); i < kTile<kCount> && first + i < columns; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      sum += of_warps[w * kTile<kCount> + i];
    }
    parts[part * columns + first + i] = sum;
  }
}

/// parts [parts, columns] of matrix [rows, columns]. Bytes: rows × columns × sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
column_sums(const T* matrix, float* parts, std::int64_t rows, std::int64_t columns) {
  constexpr int kCount = Pack<T>::kCount;
  sum_columns<kThreads, kCount>(parts, rows, columns,
                                [=](std::int64_t row, std::int64_t column, float(&to)[kCount]) {
                                  const Pack<T> pack = load_pack(matrix + row * columns + column);
                                  for (int i = 0; i < kCount; ++i) {
                                    to[i] = gpu::to_float(pack.values[i]);
                                  }
                                });
}

}  // namespace sherd::ops::cuda
