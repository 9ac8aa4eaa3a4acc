#pragma once
// Cross-entropy over rows of logits: one pass forward, and back in place.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// Keeps the largest value so far, and the sum of exponentials beside it. Bytes of one row: V ×
/// sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
cross_entropy(LogitRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  const T* const row = of.logits + gpu::block_index() * of.vocabulary;
  float largest = -gpu::kInfinity;
  float sum = 0;
  for (std::int64_t at = gpu::thread_index() * kCount; at < of.vocabulary;
       at += std::int64_t{kThreads} * kCount) {
    const Pack<T> pack = load_pack(row + at);
    float of_pack = gpu::to_float(pack.values[0]);
    for (int i = 1; i < kCount; ++i) {
      of_pack = Largest()(of_pack, gpu::to_float(pack.values[i]));
    }
    const float next = Largest()(largest, of_pack);
    sum *= gpu::exponential(largest - next);
    for (int i = 0; i < kCount; ++i) {
      sum += gpu::exponential(gpu::to_float(pack.values[i]) - next);
    }
    largest = next;
  }
  const float of_all = block_max<kThreads>(largest);
  sum = block_sum<kThreads>(sum * gpu::exponential(largest - of_all));
  if (gpu::thread_index() == 0) {
    const std::int64_t target = of.targets[gpu::block_index()];
    const bool is_inside = target >= 0 && target < of.vocabulary;
    const float log_sum = of_all + gpu::logarithm(sum);
    of.log_sums[gpu::block_index()] = log_sum;
    of.losses[gpu::block_index()] =
        is_inside ? log_sum - gpu::to_float(row[target]) : gpu::kNotANumber;
  }
}

/// logits = (softmax − one-hot target) × scale. Bytes of one row: 2 × V × sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
cross_entropy_backward(LogitRows<T> of, const float* scale) {
  constexpr int kCount = Pack<T>::kCount;
  T* const row = of.logits + gpu::block_index() * of.vocabulary;
  const std::int64_t target = of.targets[gpu::block_index()];
  const float log_sum = of.log_sums[gpu::block_index()];
  for (std::int64_t at = gpu::thread_index() * kCount; at < of.vocabulary;
       at += std::int64_t{kThreads} * kCount) {
    Pack<T> pack = load_pack(row + at);
    for (int i = 0; i < kCount; ++i) {
      const float share = gpu::exponential(gpu::to_float(pack.values[i]) - log_sum);
      pack.values[i] = gpu::rounded<T>((share - (at + i == target ? 1.0F : 0.0F)) * *scale);
    }
    store_pack(row + at, pack);
  }
}

}  // namespace sherd::ops::cuda
