#pragma once
// RMSNorm and LayerNorm of rows, after an addition or without one: forward. A block holds a row in
// registers, reads it once and writes each result once.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// Bytes per row: 4 × D × sizeof(T) with a residual (two read, two written), 2 × without; weight
/// and bias, which the caches hold; 8 written.
/// `kIsWide`: RMSNorm with its weight in fp32.
template <class T, int kThreads, int kPacks, bool kIsLayerNorm, bool kIsWide = false>
GPU_KERNEL(kThreads)
norm(NormRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  const std::int64_t row = gpu::block_index();
  float x[kPacks][kCount];
  float total = 0;
  for (int pack = 0; pack < kPacks; ++pack) {
    const int at = (pack * kThreads + gpu::thread_index()) * kCount;
    if (at < of.width) {
      Pack<T> values = load_pack(of.input + row * of.width + at);
      if (of.residual != nullptr) {
        const Pack<T> more = load_pack(of.residual + row * of.width + at);
        for (int i = 0; i < kCount; ++i) {
          values.values[i] =
              gpu::rounded<T>(gpu::to_float(values.values[i]) + gpu::to_float(more.values[i]));
        }
        store_pack(of.sum + row * of.width + at, values);
      }
      for (int i = 0; i < kCount; ++i) {
        x[pack][i] = gpu::to_float(values.values[i]);
        total += kIsLayerNorm ? x[pack][i] : x[pack][i] * x[pack][i];
      }
    }
  }
  total = block_sum<kThreads>(total) / static_cast<float>(of.width);
  const float mean = kIsLayerNorm ? total : 0.0F;
  if (kIsLayerNorm) {
    float squares = 0;
    for (int pack = 0; pack < kPacks; ++pack) {
      const int at = (pack * kThreads + gpu::thread_index()) * kCount;
      for (int i = 0; i < kCount && at < of.width; ++i) {
        squares += (x[pack][i] - mean) * (x[pack][i] - mean);
      }
    }
    total = block_sum<kThreads>(squares) / static_cast<float>(of.width);
  }
  const float inverse = 1.0F / gpu::square_root(total + of.epsilon);
  if (gpu::thread_index() == 0) {
    gpu::store_value(of.statistics + row, mean);
    gpu::store_value(of.statistics + of.rows + row, inverse);
  }
  for (int pack = 0; pack < kPacks; ++pack) {
    const int at = (pack * kThreads + gpu::thread_index()) * kCount;
    if (at < of.width) {
      const Pack<T> weight = load_pack(of.weight + at);
      Pack<T> result;
      if (kIsLayerNorm) {
        const Pack<T> bias = load_pack(of.bias + at);
        for (int i = 0; i < kCount; ++i) {
          const float n = (x[pack][i] - mean) * inverse;
          result.values[i] =
              gpu::rounded<T>(n * gpu::to_float(weight.values[i]) + gpu::to_float(bias.values[i]));
        }
      } else if (kIsWide) {
        for (int i = 0; i < kCount; ++i) {
          const float factor = of.offset + gpu::to_float(weight.values[i]);
          result.values[i] = gpu::rounded<T>(x[pack][i] * inverse * factor);
        }
      } else {
        for (int i = 0; i < kCount;
             ++i) {  // rounded before the weight, as Hugging Face's Llama does
          const float n = gpu::to_float(gpu::rounded<T>(x[pack][i] * inverse));
          result.values[i] = gpu::rounded<T>(n * gpu::to_float(weight.values[i]));
        }
      }
      store_pack(of.normalised + row * of.width + at, result);
    }
  }
}

}  // namespace sherd::ops::cuda
