#pragma once
// Cross-entropy over rows of logits: one pass forward, and back in place.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// Subtracted before exponentials are taken; 0 where the largest value is infinite, as LibTorch's
/// logsumexp does: ∞ − ∞ would be NaN for a thread, or a whole row, that sees masked logits alone.
GPU_FUNCTION float shift_by(float largest) {
  const bool is_infinite = largest == gpu::kInfinity || largest == -gpu::kInfinity;
  return is_infinite ? 0.0F : largest;
}

/// Keeps the largest value so far and the sum of exponentials relative to it. A row of −inf
/// alone has the log sum −inf. Bytes per row: read V × sizeof(T), 8 for the target and
/// sizeof(T) for its logit; write 8.
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
    const float shift = shift_by(next);
    sum *= gpu::exponential(largest - shift);
    for (int i = 0; i < kCount; ++i) {
      sum += gpu::exponential(gpu::to_float(pack.values[i]) - shift);
    }
    largest = next;
  }
  const float of_all = block_max<kThreads>(largest);
  const float shift = shift_by(of_all);
  sum = block_sum<kThreads>(sum * gpu::exponential(largest - shift));
  if (gpu::thread_index() == 0) {
    const std::int64_t target = gpu::load_value(of.targets + gpu::block_index());
    const bool is_inside = target >= 0 && target < of.vocabulary;
    const float log_sum = shift + gpu::logarithm(sum);
    gpu::store_value(of.log_sums + gpu::block_index(), log_sum);
    gpu::store_value(
        of.losses + gpu::block_index(),
        is_inside ? log_sum - gpu::to_float(gpu::load_value(row + target)) : gpu::kNotANumber);
  }
}

/// logits = (softmax − one-hot target) × scale. Bytes per row: read V × sizeof(T), and 16 for each
/// warp (target, log sum, scale); write V × sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
cross_entropy_backward(LogitRows<T> of, const float* scale) {
  constexpr int kCount = Pack<T>::kCount;
  T* const row = of.logits + gpu::block_index() * of.vocabulary;
  const std::int64_t target = gpu::load_for_warp(of.targets + gpu::block_index());
  const float log_sum = gpu::load_for_warp(of.log_sums + gpu::block_index());
  const float factor = gpu::load_for_warp(scale + gpu::block_index() * of.scale_stride);
  for (std::int64_t at = gpu::thread_index() * kCount; at < of.vocabulary;
       at += std::int64_t{kThreads} * kCount) {
    Pack<T> pack = load_pack(row + at);
    for (int i = 0; i < kCount; ++i) {
      const float share = gpu::exponential(gpu::to_float(pack.values[i]) - log_sum);
      pack.values[i] = gpu::rounded<T>((share - (at + i == target ? 1.0F : 0.0F)) * factor);
    }
    store_pack(row + at, pack);
  }
}

}  // namespace sherd::ops::cuda
