#pragma once
// Gradients of RMSNorm and LayerNorm of rows. Both forms give the same results, but for the order
// in which the rows of a weight's gradient are added.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"
#include "ops/cuda/kernels/column_sums.cuh"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// Packs of a row that a thread of norm_backward() holds.
inline constexpr int kRowPacks = 2;

/// The packs of a row that are this thread's.
template <class T>
GPU_FUNCTION void load_row(const T* rows, const NormBackwardRows<T>& of, std::int64_t row,
                           const int (&at)[kRowPacks], Words (&to)[kRowPacks]) {
  for (int pack = 0; pack < kRowPacks; ++pack) {
    if (row < of.rows && at[pack] < of.width) {
      to[pack] = load_words(rows + row * of.width + at[pack]);
    }
  }
}

/// What the sums over a row are of: all loads are issued before the first value is used.
template <class T>
struct NormRow {
  Words x[kRowPacks] = {};
  Words grad[kRowPacks] = {};
  float mean = 0;
  float inverse = 0;

  GPU_FUNCTION void load(const NormBackwardRows<T>& of, std::int64_t row,
                         const int (&at)[kRowPacks]) {
    load_row(of.sum, of, row, at, x);
    load_row(of.grad, of, row, at, grad);
    if (row < of.rows) {
      mean = gpu::load_for_warp(of.statistics + row);
      inverse = gpu::load_for_warp(of.statistics + of.rows + row);
    }
  }
};

/// The normalised value as the weight multiplied it in forward.
template <class T, bool kRoundsOnce>
GPU_FUNCTION float weighted_value(float normalised) {
  return kRoundsOnce ? normalised : gpu::to_float(gpu::rounded<T>(normalised));
}

/// What the normalised value is multiplied by.
template <bool kIsWide, class T>
GPU_FUNCTION float factor_of(float weight, const NormBackwardRows<T>& of) {
  return kIsWide ? of.offset + weight : weight;
}

/// Sums over the threads of a row, kRowWarps warps of the block, for each of them; in the same
/// order every time. `turn` alternates from call to call, so that one barrier is enough: what this
/// call writes, nobody reads in the call before.
template <int kThreads, int kRowWarps, int kValues>
GPU_FUNCTION void sum_of_row(float (&values)[kValues], int turn) {
  constexpr int kWarps = kThreads / gpu::kWarp;
  for (int bits = gpu::kWarp / 2; bits > 0; bits /= 2) {
    for (int i = 0; i < kValues; ++i) {
      values[i] += gpu::shuffle_xor(values[i], bits);
    }
  }
  if constexpr (kRowWarps > 1) {
    GPU_SHARED(float, of_warps, 2 * kWarps * kValues);
    float* const here = of_warps + turn * kWarps * kValues;
    const int warp = gpu::thread_index() / gpu::kWarp;
    if (gpu::thread_index() % gpu::kWarp == 0) {
      for (int i = 0; i < kValues; ++i) {
        here[warp * kValues + i] = values[i];
      }
    }
    gpu::sync_block();
    const int first = warp / kRowWarps * kRowWarps;
    for (int i = 0; i < kValues; ++i) {
      values[i] = here[first * kValues + i];
      for (int w = 1; w < kRowWarps; ++w) {
        values[i] += here[(first + w) * kValues + i];
      }
    }
  }
}

/// parts [blocks, width]: this block's, the sum of what the groups of its threads have, in their
/// order.
template <int kThreads, int kGroups, int kCount>
GPU_FUNCTION void store_parts(float* parts, int width, const int (&at)[kRowPacks],
                              const float (&values)[kRowPacks][kCount]) {
  float* const to = parts + gpu::block_index() * width;
  if constexpr (kGroups == 1) {
    for (int pack = 0; pack < kRowPacks; ++pack) {
      if (at[pack] < width) {
        store_floats(to + at[pack], values[pack]);
      }
    }
  } else {
    constexpr int kColumns = kThreads / kGroups * kRowPacks * kCount;  // that a group has
    GPU_SHARED(float, of_groups, kGroups* kColumns);
    const int group = gpu::thread_index() / (kThreads / kGroups);
    gpu::sync_block();  // the call before has been read
    for (int pack = 0; pack < kRowPacks; ++pack) {
      for (int i = 0; i < kCount; ++i) {
        of_groups[group * kColumns + at[pack] + i] = values[pack][i];
      }
    }
    gpu::sync_block();
    for (int column = gpu::thread_index(); column < width; column += kThreads) {
      float sum = of_groups[column];
      for (int g = 1; g < kGroups; ++g) {
        sum += of_groups[g * kColumns + column];
      }
      gpu::store_value(to + column, sum);
    }
  }
}

/// kRowWarps warps hold a row, so that a block has kGroups rows at a time, and takes every
/// block_count()th such group of rows. While a row is worked on, the loads of the next one are
/// under way, and those of the sum's gradient, which is added at the end: 96 bytes per thread,
/// which two blocks of 256 threads per multiprocessor make 49 KB. One barrier per row, none where a
/// warp holds it. Each thread keeps its columns of the weight's and the bias's gradient over all
/// rows. Bytes per row: read 2 × D × sizeof(T), 3 × with grad_sum, and 8 for each warp of the row;
/// write D × sizeof(T). Bytes per block: read D × sizeof(T) for each group; write 4 × D for each of
/// weight and bias.
template <class T, int kThreads, int kRowWarps, bool kIsLayerNorm, bool kIsWide = false>
GPU_KERNEL(kThreads, 512 / kThreads)
norm_backward(NormBackwardRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  constexpr int kRowThreads = kRowWarps * gpu::kWarp, kGroups = kThreads / kRowThreads;
  const int lane = gpu::thread_index() % kRowThreads;
  const int at[kRowPacks] = {lane * kCount, (kRowThreads + lane) * kCount};
  Words weight[kRowPacks] = {};
  for (int pack = 0; pack < kRowPacks; ++pack) {
    if (at[pack] < of.width) {
      weight[pack] = load_words(of.weight + at[pack]);
    }
  }
  float weight_part[kRowPacks][kCount] = {};
  float bias_part[kRowPacks][kCount] = {};
  const std::int64_t stride = gpu::block_count() * kGroups;
  std::int64_t row = gpu::block_index() * kGroups + gpu::thread_index() / kRowThreads;
  NormRow<T> next;
  next.load(of, row, at);
  int turn = 0;
  for (std::int64_t first = gpu::block_index() * kGroups; first < of.rows; first += stride) {
    const NormRow<T> now = next;
    Words grad_sum[kRowPacks] = {};
    if (of.grad_sum != nullptr) {
      load_row(of.grad_sum, of, row, at, grad_sum);
    }
    next.load(of, row + stride, at);
    float sums[kIsLayerNorm ? 2 : 1] = {};
    for (int pack = 0; pack < kRowPacks; ++pack) {
      for (int i = 0; i < kCount && row < of.rows && at[pack] < of.width; ++i) {
        const float dy = float_at<T>(now.grad[pack], i);
        const float n = (float_at<T>(now.x[pack], i) - now.mean) * now.inverse;
        const float g = dy * factor_of<kIsWide>(float_at<T>(weight[pack], i), of);
        sums[0] += g * n;
        weight_part[pack][i] += dy * weighted_value < T, kIsLayerNorm || kIsWide > (n);
        if constexpr (kIsLayerNorm) {
          sums[1] += g;
          bias_part[pack][i] += dy;
        }
      }
    }
    sum_of_row<kThreads, kRowWarps>(sums, turn);
    turn ^= 1;
    const float projection = sums[0] / static_cast<float>(of.width);
    const float shift =
        kIsLayerNorm ? sums[kIsLayerNorm ? 1 : 0] / static_cast<float>(of.width) : 0.0F;
    for (int pack = 0; pack < kRowPacks; ++pack) {
      if (row < of.rows && at[pack] < of.width) {
        Pack<T> result;
        for (int i = 0; i < kCount; ++i) {
          const float n = (float_at<T>(now.x[pack], i) - now.mean) * now.inverse;
          const float g =
              float_at<T>(now.grad[pack], i) * factor_of<kIsWide>(float_at<T>(weight[pack], i), of);
          result.values[i] = gpu::rounded<T>((g - shift - n * projection) * now.inverse +
                                             float_at<T>(grad_sum[pack], i));
        }
        store_pack(of.grad_input + row * of.width + at[pack], result);
      }
    }
    row += stride;
  }
  if (of.weight_parts != nullptr) {
    store_parts<kThreads, kGroups>(of.weight_parts, of.width, at, weight_part);
  }
  if (kIsLayerNorm && of.bias_parts != nullptr) {
    store_parts<kThreads, kGroups>(of.bias_parts, of.width, at, bias_part);
  }
}

/// The input's gradient of rows that no block holds in registers: a block reads a row twice, the
/// second time from the caches. Bytes per row: read 4 × D × sizeof(T), 5 × with grad_sum, 2 × for
/// the weight, and 8 for each warp; write D × sizeof(T).
template <class T, int kThreads, bool kIsLayerNorm, bool kIsWide = false>
GPU_KERNEL(kThreads)
norm_input_gradient(NormBackwardRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  const std::int64_t begin = gpu::block_index() * of.width;
  const float mean = gpu::load_for_warp(of.statistics + gpu::block_index());
  const float inverse = gpu::load_for_warp(of.statistics + of.rows + gpu::block_index());
  const auto for_row = [&](const auto& use) {
    for (int at = gpu::thread_index() * kCount; at < of.width; at += kThreads * kCount) {
      const Pack<T> x = load_pack(of.sum + begin + at);
      const Pack<T> grad = load_pack(of.grad + begin + at);
      const Pack<T> weight = load_pack(of.weight + at);
      float n[kCount];
      float g[kCount];
      for (int i = 0; i < kCount; ++i) {
        n[i] = (gpu::to_float(x.values[i]) - mean) * inverse;
        g[i] =
            gpu::to_float(grad.values[i]) * factor_of<kIsWide>(gpu::to_float(weight.values[i]), of);
      }
      use(at, n, g);
    }
  };
  float projection = 0;
  float shift = 0;
  for_row([&](int /*at*/, const float(&n)[kCount], const float(&g)[kCount]) {
    for (int i = 0; i < kCount; ++i) {
      projection += g[i] * n[i];
      shift += g[i];
    }
  });
  projection = block_sum<kThreads>(projection) / static_cast<float>(of.width);
  shift = kIsLayerNorm ? block_sum<kThreads>(shift) / static_cast<float>(of.width) : 0.0F;
  for_row([&](int at, const float(&n)[kCount], const float(&g)[kCount]) {
    Pack<T> more = {};
    if (of.grad_sum != nullptr) {
      more = load_pack(of.grad_sum + begin + at);
    }
    Pack<T> result;
    for (int i = 0; i < kCount; ++i) {
      result.values[i] = gpu::rounded<T>((g[i] - shift - n[i] * projection) * inverse +
                                         gpu::to_float(more.values[i]));
    }
    store_pack(of.grad_input + begin + at, result);
  });
}

/// weight_parts [parts, D] of such rows, parts and blocks as sum_columns() has them. Bytes: read 2
/// × rows × (D × sizeof(T) + D ÷ Pack<T>::kCount × 4); write 4 × parts × D.
template <class T, int kThreads, bool kIsLayerNorm, bool kIsWide = false>
GPU_KERNEL(kThreads)
norm_weight_gradient(NormBackwardRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  struct Read {
    Words x;
    Words grad;
    float mean;
    float inverse;
  };
  const auto read = [of](std::int64_t row, std::int64_t column) {
    const std::int64_t at = row * of.width + column;
    return Read{load_words(of.sum + at), load_words(of.grad + at),
                gpu::load_value(of.statistics + row),
                gpu::load_value(of.statistics + of.rows + row)};
  };
  const auto values = [](const Read& from, std::int64_t /*row*/, std::int64_t /*column*/,
                         float(&to)[kCount]) {
    for (int i = 0; i < kCount; ++i) {
      const float n = (float_at<T>(from.x, i) - from.mean) * from.inverse;
      to[i] = float_at<T>(from.grad, i) * weighted_value < T, kIsLayerNorm || kIsWide > (n);
    }
  };
  sum_columns<kThreads, kCount, 4>(of.weight_parts, of.rows, of.width, read, values);
}

}  // namespace sherd::ops::cuda
