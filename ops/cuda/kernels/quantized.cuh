#pragma once
// The numbers of weights in 8 bits.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/activations.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// A thread makes a pack of one block's numbers at a time. Blocks begin at multiples of two bytes,
/// and are read so. Bytes per number: 34 ÷ 32 are read, sizeof(T) are written.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
dequantize(QuantizedRows<T> of) {
  constexpr int kBlock = 32, kScaleBytes = 2, kBlockBytes = kScaleBytes + kBlock;
  constexpr int kCount = Pack<T>::kCount;
  const auto pack_of = [of](std::int64_t row, std::int64_t column, std::int64_t at) {
    const auto block = static_cast<unsigned>(column) / kBlock;
    const auto first = static_cast<unsigned>(column) % kBlock;
    const std::uint8_t* const bytes =
        of.blocks + row * of.stride + static_cast<std::int64_t>(block) * kBlockBytes;
    const auto* const pairs = reinterpret_cast<const std::uint16_t*>(bytes + kScaleBytes + first);
    std::uint16_t codes[kCount / 2];
    for (int i = 0; i < kCount / 2; ++i) {
      codes[i] = gpu::load_value(pairs + i);
    }
    const float scale = gpu::to_float(gpu::load_value(reinterpret_cast<const Half*>(bytes)));
    Pack<T> numbers;
    for (int i = 0; i < kCount; ++i) {
      const auto code = static_cast<std::int8_t>(codes[i / 2] >> (i % 2 == 0 ? 0 : 8));
      numbers.values[i] = gpu::rounded<T>(scale * static_cast<float>(code));
    }
    store_pack(of.out + at, numbers);
  };
  for_packs<kCount, kThreads>(of.rows * of.width, of.width, pack_of);
}

}  // namespace sherd::ops::cuda
