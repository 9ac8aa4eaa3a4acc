#pragma once
// Sums of gradients in rank order, sums of squares, and what is made of them: nothing waits, and
// each sum is added up in an order that the count alone decides.

#include "kernels/cuda/kernels/flat.cuh"

namespace sherd::cuda {

/// As many as a launch lists. More lie at one distance from each to the next.
inline constexpr int kMaxSources = 128;

template <class T>
struct Sources {
  GPU_FUNCTION const T* of(int rank) const {
    return count <= kMaxSources ? all[rank] : all[0] + rank * distance;
  }
  const T* all[kMaxSources] = {};
  int count = 0;
  int64_t distance = 0;  ///< in elements
};

/// Floats within a pack, doubles over them.
template <int kElements>
GPU_FUNCTION void add_squares(double& sum, const float (&values)[kElements]) {
  float squares = 0;
  for (int i = 0; i < kElements; ++i) {
    squares += values[i] * values[i];
  }
  sum += squares;
}
/// Each block's.
template <int kThreads>
GPU_FUNCTION void store_part(double* parts, double value) {
  const double sum = block_sum<kThreads>(value);
  if (gpu::thread_index() == 0) {
    gpu::store_value(parts + gpu::block_index(), sum);
  }
}

/// kernels::sum_in_rank_order(), to its bits. Bytes of one element: sizeof(In) of each source,
/// sizeof(Out), the same again where it accumulates.
template <class Out, class In, int kThreads>
GPU_KERNEL(kThreads, 4)
sum_in_rank_order(Flat flat, Out* out, bool accumulate, float scale, Sources<In> sources) {
  for_flat<kThreads>(flat, [&]<int kElements>(Count<kElements>, int64_t at) {
    float sum[kElements];
    for (int i = 0; i < kElements; ++i) {
      sum[i] = -0.0F;  // to which whatever is added stays as it is
    }
    if (accumulate) {
      load(out + at, sum);
    }
    for (int rank = 0; rank < sources.count; ++rank) {
      float part[kElements];
      load(sources.of(rank) + at, part);
      for (int i = 0; i < kElements; ++i) {
        sum[i] += scale * part[i];
      }
    }
    store(out + at, sum);
  });
}

/// `parts` [blocks]. Bytes of one element: sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
squares_of(Flat flat, const T* values, double* parts) {
  double squares = 0;
  for_flat<kThreads>(flat, [&]<int kElements>(Count<kElements>, int64_t at) {
    float x[kElements];
    load(values + at, x);
    add_squares(squares, x);
  });
  store_part<kThreads>(parts, squares);
}

/// One block: the sum of `count` parts.
template <int kThreads>
GPU_KERNEL(kThreads)
sum_parts(const double* parts, int64_t count, double* sum) {
  double mine = 0;
  for (int64_t at = gpu::thread_index(); at < count; at += kThreads) {
    mine += gpu::load_value(parts + at);
  }
  store_part<kThreads>(sum, mine);
}

/// One block: the factor that clip_grad_norm() takes, of the sum of squares over all ranks.
template <int kThreads>
GPU_KERNEL(kThreads)
clip_factor(const double* squares, double max_norm, float* factor) {
  if (gpu::thread_index() == 0) {
    const double wanted = max_norm / (gpu::square_root(*squares) + 1e-6);
    *factor = wanted < 1.0 ? static_cast<float>(wanted) : 1.0F;  // 1 where it is NaN
  }
}

}  // namespace sherd::cuda
