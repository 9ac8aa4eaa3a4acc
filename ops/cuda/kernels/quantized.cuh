#pragma once
// The numbers of weights in 8 bits.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// Each warp a block of 32 numbers at a time. Bytes per number: 34 ÷ 32 are read, sizeof(T) are
/// written.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
dequantize(QuantizedRows<T> of) {
  constexpr int kScaleBytes = 2, kBlockBytes = kScaleBytes + gpu::kWarp;
  const auto blocks_of_row = static_cast<unsigned>(of.width / gpu::kWarp);
  const std::int64_t numbers = of.rows * of.width;
  for (std::int64_t at = gpu::block_index() * kThreads + gpu::thread_index(); at < numbers;
       at += gpu::block_count() * kThreads) {
    // In 32 bits, whose divisions are the cheaper ones.
    const auto block = static_cast<unsigned>(at / gpu::kWarp);
    const unsigned row = block / blocks_of_row, column = block - row * blocks_of_row;
    const std::uint8_t* const bytes =
        of.blocks + row * of.stride + static_cast<std::int64_t>(column) * kBlockBytes;
    const auto* const codes = reinterpret_cast<const std::int8_t*>(bytes + kScaleBytes);
    const float scale = gpu::to_float(gpu::load_for_warp(reinterpret_cast<const Half*>(bytes)));
    const auto code = static_cast<float>(gpu::load_value(codes + at % gpu::kWarp));
    gpu::store_value(of.out + at, gpu::rounded<T>(scale * code));
  }
}

}  // namespace sherd::ops::cuda
