#pragma once
// Sums over the rows of a matrix, in an order that does not depend on the threads': blocks sum
// parts of the rows, and the same kernel sums the parts.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// Columns that a block sums.
template <int kCount>
inline constexpr int kTile = kTileThreads* kCount;

/// parts [parts, columns]: the sums over a part of the rows each, of a pack's values; with null for
/// `parts` they are computed and not summed. `columns` a multiple of kCount. Blocks: parts ×
/// ⌈columns ÷ kTile⌉. All of a block's threads call it.
/// `read(row, column)` loads what `values(loaded, row, column, to)` makes values of. A thread loads
/// kBatch rows before it uses the first: all rows of a part, where it has kThreads ÷ 8 × kBatch or
/// fewer, are under way at once. Values are added in the order of a thread's rows, then in that of
/// threads.
template <int kThreads, int kCount, int kBatch, class Read, class Values>
GPU_FUNCTION void sum_columns(float* parts, std::int64_t rows, std::int64_t columns,
                              const Read& read, const Values& values) {
  constexpr int kGroups = kThreads / kTileThreads;  // each with a row at a time
  GPU_SHARED(float, of_groups, kGroups* kTile<kCount>);
  const std::int64_t tiles = (columns + kTile<kCount> - 1) / kTile<kCount>;
  const std::int64_t part = gpu::block_index() / tiles, count = gpu::block_count() / tiles;
  const std::int64_t first = gpu::block_index() % tiles * kTile<kCount>;
  const int group = gpu::thread_index() / kTileThreads;
  const int at = gpu::thread_index() % kTileThreads * kCount;
  float sums[kCount] = {};
  const std::int64_t end = first + at < columns ? (part + 1) * rows / count : 0;
  for (std::int64_t row = part * rows / count + group; row < end; row += kGroups * kBatch) {
    decltype(read(row, first)) loaded[kBatch];
    for (int i = 0; i < kBatch; ++i) {
      if (row + i * kGroups < end) {
        loaded[i] = read(row + i * kGroups, first + at);
      }
    }
    for (int i = 0; i < kBatch; ++i) {
      if (row + i * kGroups < end) {
        float of_row[kCount];
        values(loaded[i], row + i * kGroups, first + at, of_row);
        for (int j = 0; j < kCount; ++j) {
          sums[j] += of_row[j];
        }
      }
    }
  }
  if (parts == nullptr) {
    return;
  }
  for (int i = 0; i < kCount; ++i) {
    of_groups[group * kTile<kCount> + at + i] = sums[i];
  }
  gpu::sync_block();
  for (int i = gpu::thread_index(); i < kTile<kCount> && first + i < columns; i += kThreads) {
    float sum = 0;
    for (int g = 0; g < kGroups; ++g) {
      sum += of_groups[g * kTile<kCount> + i];
    }
    gpu::store_value(parts + part * columns + first + i, sum);
  }
}

/// parts [parts, columns] of matrix [rows, columns]. Bytes: read rows × columns × sizeof(T); write
/// 4 × parts × columns.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
column_sums(const T* matrix, float* parts, std::int64_t rows, std::int64_t columns) {
  constexpr int kCount = Pack<T>::kCount;
  const auto read = [=](std::int64_t row, std::int64_t column) {
    return load_words(matrix + row * columns + column);
  };
  const auto values = [](const Words& words, std::int64_t /*row*/, std::int64_t /*column*/,
                         float(&to)[kCount]) {
    for (int i = 0; i < kCount; ++i) {
      to[i] = float_at<T>(words, i);
    }
  };
  sum_columns<kThreads, kCount, 8>(parts, rows, columns, read, values);
}

}  // namespace sherd::ops::cuda
