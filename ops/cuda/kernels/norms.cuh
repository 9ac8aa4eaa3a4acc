#pragma once
// RMSNorm and LayerNorm of rows, after an addition or without one. A row is a block's and stays in
// its registers: it is read once, and each result written once.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// Bytes of one row: 4 × D × sizeof(T) with a residual, 2 × without.
template <class T, int kThreads, int kPacks, bool kIsLayerNorm>
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
    of.statistics[row] = mean;
    of.statistics[of.rows + row] = inverse;
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

/// Each block takes every block_count()th row. Bytes of one row: 3 × D × sizeof(T), 4 × with
/// grad_sum.
template <class T, int kThreads, int kPacks, bool kIsLayerNorm>
GPU_KERNEL(kThreads, kPacks < 4 ? 2 : 1)
norm_backward(NormBackwardRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  float weight_part[kPacks][kCount] = {};
  float bias_part[kPacks][kCount] = {};
  for (std::int64_t row = gpu::block_index(); row < of.rows; row += gpu::block_count()) {
    const float mean = of.statistics[row];
    const float inverse = of.statistics[of.rows + row];
    float n[kPacks][kCount];
    float g[kPacks][kCount];
    float projection = 0;
    float total = 0;
    for (int pack = 0; pack < kPacks; ++pack) {
      const int at = (pack * kThreads + gpu::thread_index()) * kCount;
      if (at < of.width) {
        const Pack<T> x = load_pack(of.sum + row * of.width + at);
        const Pack<T> grad = load_pack(of.grad + row * of.width + at);
        const Pack<T> weight = load_pack(of.weight + at);
        for (int i = 0; i < kCount; ++i) {
          const float dy = gpu::to_float(grad.values[i]);
          n[pack][i] = (gpu::to_float(x.values[i]) - mean) * inverse;
          g[pack][i] = dy * gpu::to_float(weight.values[i]);
          projection += g[pack][i] * n[pack][i];
          total += g[pack][i];
          weight_part[pack][i] +=
              dy * (kIsLayerNorm ? n[pack][i] : gpu::to_float(gpu::rounded<T>(n[pack][i])));
          bias_part[pack][i] += kIsLayerNorm ? dy : 0.0F;
        }
      }
    }
    projection = block_sum<kThreads>(projection) / static_cast<float>(of.width);
    const float shift =
        kIsLayerNorm ? block_sum<kThreads>(total) / static_cast<float>(of.width) : 0.0F;
    for (int pack = 0; pack < kPacks; ++pack) {
      const int at = (pack * kThreads + gpu::thread_index()) * kCount;
      if (at < of.width) {
        Pack<T> result;
        for (int i = 0; i < kCount; ++i) {
          g[pack][i] = (g[pack][i] - shift - n[pack][i] * projection) * inverse;
        }
        if (of.grad_sum != nullptr) {
          const Pack<T> more = load_pack(of.grad_sum + row * of.width + at);
          for (int i = 0; i < kCount; ++i) {
            g[pack][i] += gpu::to_float(more.values[i]);
          }
        }
        for (int i = 0; i < kCount; ++i) {
          result.values[i] = gpu::rounded<T>(g[pack][i]);
        }
        store_pack(of.grad_input + row * of.width + at, result);
      }
    }
  }
  for (int pack = 0; pack < kPacks; ++pack) {
    const int at = (pack * kThreads + gpu::thread_index()) * kCount;
    const std::int64_t place = gpu::block_index() * of.width + at;
    if (at < of.width && of.weight_parts != nullptr) {
      store_floats(of.weight_parts + place, weight_part[pack]);
    }
    if (kIsLayerNorm && at < of.width && of.bias_parts != nullptr) {
      store_floats(of.bias_parts + place, bias_part[pack]);
    }
  }
}

}  // namespace sherd::ops::cuda
