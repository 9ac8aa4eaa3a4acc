#pragma once
// Values of flat shards, one by one: scaled, rounded, split into halves and joined.

#include "kernels/cuda/kernels/flat.cuh"

namespace sherd::cuda {

/// Bytes of one element: 2 × sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
scale_in_place(Flat flat, T* values, float factor) {
  for_flat<kThreads>(flat, [&]<int kElements>(Count<kElements>, int64_t at) {
    float x[kElements];
    load(values + at, x);
    for (int i = 0; i < kElements; ++i) {
      x[i] *= factor;
    }
    store(values + at, x);
  });
}

/// Bytes of one element: 6.
template <int kThreads>
GPU_KERNEL(kThreads)
to_bfloat16(Flat flat, const float* values, uint16_t* out) {
  for_flat<kThreads>(flat, [&]<int kElements>(Count<kElements>, int64_t at) {
    float x[kElements];
    load(values + at, x);
    store(out + at, x);
  });
}

/// [Note: Masters in two halves]. Bytes of one element: 8.
template <int kThreads>
GPU_KERNEL(kThreads)
split(Flat flat, const float* values, uint16_t* travelling, int16_t* low) {
  for_flat<kThreads>(flat, [&]<int kElements>(Count<kElements>, int64_t at) {
    float x[kElements];
    load(values + at, x);
    store_halves(travelling + at, low + at, x);
  });
}

/// The way back. Bytes of one element: 8.
template <int kThreads>
GPU_KERNEL(kThreads)
join(Flat flat, const uint16_t* travelling, const int16_t* low, float* out) {
  for_flat<kThreads>(flat, [&]<int kElements>(Count<kElements>, int64_t at) {
    float x[kElements];
    load_halves(travelling + at, low + at, x);
    store(out + at, x);
  });
}

}  // namespace sherd::cuda
