#pragma once
// ALiBi in products: heads grow by columns whose product is the bias, so that attention which knows
// no bias computes it.
//
// A softmax does not see what all scores of a row have in common, so that −slope × (t − s) may be
// slope × s. A position s is 128 a + b, 16 × slope ÷ scale a sum of three numbers p of 16 bits; the
// bias is scale × Σ (p × 8 a + p × b ÷ 16). Keys hold 8 a and b ÷ 16, which 16 bits hold exactly up
// to position 32767, and products of 16 bits are exact in fp32. Three times 8 bits are fp32's own;
// in fp16 the factors keep slopes from 2⁻⁸ to 4094 ÷ √H within its range.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

inline constexpr int kSlopeParts = 3;
inline constexpr int kFinePositions = 128;    // a position is 128 a + b
inline constexpr float kCoarseFactor = 8.0F;  // keys have 8 a and b ÷ 16
inline constexpr float kFineFactor = 16.0F;

/// Copies heads, with the pack columns_of(token, head) behind each. Bytes: (2 × width +
/// Pack<T>::kCount) × tokens × heads × sizeof(T).
template <class T, int kThreads, class ColumnsOf>
GPU_FUNCTION void widen_heads(const WiderHeads<T>& of, const ColumnsOf& columns_of) {
  constexpr int kCount = Pack<T>::kCount;
  const auto packs_of_head = static_cast<unsigned>(of.width / kCount) + 1;
  const std::int64_t packs = of.tokens * of.heads * packs_of_head;
  for (std::int64_t pack = gpu::block_index() * kThreads + gpu::thread_index(); pack < packs;
       pack += gpu::block_count() * kThreads) {
    // In 32 bits, whose divisions are the cheaper ones.
    const unsigned row = static_cast<unsigned>(pack) / packs_of_head;
    const int at = static_cast<int>(static_cast<unsigned>(pack) % packs_of_head) * kCount;
    const int token = static_cast<int>(row / static_cast<unsigned>(of.heads));
    const int head = static_cast<int>(row % static_cast<unsigned>(of.heads));
    store_pack(of.out + pack * kCount,
               at == of.width
                   ? columns_of(token, head)
                   : load_pack(of.input + token * of.token_stride + head * of.head_stride + at));
  }
}

template <class T>
GPU_FUNCTION Pack<T> zeros() {
  Pack<T> pack;
  for (T& value : pack.values) {
    value = gpu::rounded<T>(0.0F);
  }
  return pack;
}

/// Queries, with the parts of slope × `factor`: each twice, for a and for b.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
alibi_queries(WiderHeads<T> of, const float* slopes, float factor) {
  widen_heads<T, kThreads>(of, [=](int /*token*/, int head) {
    Pack<T> columns = zeros<T>();
    float rest = slopes[head] * factor;
    for (int part = 0; part < kSlopeParts; ++part) {
      const T value = gpu::rounded<T>(rest);
      rest -= gpu::to_float(value);
      columns.values[2 * part] = columns.values[2 * part + 1] = value;
    }
    return columns;
  });
}

/// Of documents that lie one after the other, the first at 0.
GPU_FUNCTION int position_in_document(int token, const std::int32_t* offsets, int documents) {
  int first = 0;
  for (int end = documents; end - first > 1;) {  // offsets[first] ≤ token < offsets[end]
    const int middle = (first + end) / 2;
    (offsets[middle] <= token ? first : end) = middle;
  }
  return token - offsets[first];
}

/// Keys, with their positions: a and b for each part of a slope.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
alibi_keys(WiderHeads<T> of, const std::int32_t* offsets, int documents) {
  widen_heads<T, kThreads>(of, [=](int token, int /*head*/) {
    Pack<T> columns = zeros<T>();
    const int position = position_in_document(token, offsets, documents);
    const auto coarse = static_cast<float>(position / kFinePositions);
    const auto fine = static_cast<float>(position % kFinePositions);
    for (int part = 0; part < kSlopeParts; ++part) {
      columns.values[2 * part] = gpu::rounded<T>(coarse * kCoarseFactor);
      columns.values[2 * part + 1] = gpu::rounded<T>(fine / kFineFactor);
    }
    return columns;
  });
}

/// With zeros.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
wider_heads(WiderHeads<T> of) {
  widen_heads<T, kThreads>(of, [](int /*token*/, int /*head*/) { return zeros<T>(); });
}

}  // namespace sherd::ops::cuda
