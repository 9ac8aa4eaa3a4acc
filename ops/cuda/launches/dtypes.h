#pragma once
// From a dtype's name to the type that kernels are compiled for.

#include <gpu.h>

#include "ops/cuda/launches.h"

namespace sherd::ops::cuda {

/// Of a block, where a kernel needs no other number.
inline constexpr int kThreads = 256;

/// Calls `f(T())`.
template <class F>
void with_type(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::Float:
      f(float());
      break;
    case Dtype::BFloat16:
      f(gpu::BFloat16());
      break;
    case Dtype::Half:
      f(gpu::Half());
      break;
  }
}

[[nodiscard]] inline gpu::Stream stream_of(StreamHandle handle) {
  return static_cast<gpu::Stream>(handle);
}

/// Blocks for elementwise kernels, each thread of which walks over packs: no more than a GPU runs
/// at once, and some over.
[[nodiscard]] inline std::int64_t blocks_for(std::int64_t packs) {
  constexpr std::int64_t kMost = 4096;
  return std::min((packs + kThreads - 1) / kThreads, kMost);
}

/// Blocks of sum_columns().
[[nodiscard]] inline std::int64_t sum_blocks(Dtype dtype, std::int64_t parts,
                                             std::int64_t columns) {
  const std::int64_t tile = kTileThreads * pack_count(dtype);
  return parts * ((columns + tile - 1) / tile);
}

}  // namespace sherd::ops::cuda
