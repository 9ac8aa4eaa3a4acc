#pragma once
// Flat ranges of fp32 and bf16, any count from any element on: sixteen bytes at a time where all
// arrays of a kernel can, single elements before and after.

#include "gpu/block.cuh"
#include "kernels/bits.h"

namespace sherd::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// What a thread takes at once: a pack of 16 bits, two of fp32.
inline constexpr int kPacked = Pack<uint16_t>::kCount;

/// A range as the host has cut it.
struct Flat {
  int64_t numel = 0;
  int64_t head = 0;   ///< single elements before all arrays are at a multiple of 16 bytes
  int64_t packs = 0;  ///< of kPacked elements, after them
};

template <int kElements>
struct Count {};

/// Calls body(Count<n>(), first) for n elements at a time, kPacked or 1, dealt out to the threads
/// of all blocks.
template <int kThreads, class Body>
GPU_FUNCTION void for_flat(const Flat& flat, const Body& body) {
  const int64_t threads = gpu::block_count() * kThreads;
  const int64_t thread = gpu::block_index() * kThreads + gpu::thread_index();
  for (int64_t pack = thread; pack < flat.packs; pack += threads) {
    body(Count<kPacked>(), flat.head + pack * kPacked);
  }
  const int64_t packed = flat.packs * kPacked;
  for (int64_t single = thread; single < flat.numel - packed; single += threads) {
    body(Count<1>(), single < flat.head ? single : single + packed);
  }
}

/// Elements as they are stored, of 16 or 32 bits.
template <class T, int kElements>
GPU_FUNCTION void load_stored(const T* from, T (&to)[kElements]) {
  constexpr int kStep = kElements == 1 ? 1 : Pack<T>::kCount;
  for (int at = 0; at < kElements; at += kStep) {
    if constexpr (kElements == 1) {
      to[0] = *from;
    } else {
      const Pack<T> pack = load_pack(from + at);
      for (int i = 0; i < kStep; ++i) {
        to[at + i] = pack.values[i];
      }
    }
  }
}
template <class T, int kElements>
GPU_FUNCTION void store_stored(T* to, const T (&from)[kElements]) {
  constexpr int kStep = kElements == 1 ? 1 : Pack<T>::kCount;
  for (int at = 0; at < kElements; at += kStep) {
    if constexpr (kElements == 1) {
      *to = from[0];
    } else {
      Pack<T> pack;
      for (int i = 0; i < kStep; ++i) {
        pack.values[i] = from[at + i];
      }
      store_pack(to + at, pack);
    }
  }
}

/// fp32, or bf16 as its bits, to floats.
template <class T, int kElements>
GPU_FUNCTION void load(const T* from, float (&to)[kElements]) {
  T stored[kElements];
  load_stored(from, stored);
  for (int i = 0; i < kElements; ++i) {
    to[i] = kernels::widened(stored[i]);
  }
}

/// To the nearest.
template <class T>
GPU_FUNCTION T nearest(float value);
template <>
GPU_FUNCTION float nearest<float>(float value) {
  return value;
}
template <>
GPU_FUNCTION uint16_t nearest<uint16_t>(float value) {
  return kernels::narrowed(value);
}

/// Rounded to the nearest; `from` becomes what is stored.
template <class T, int kElements>
GPU_FUNCTION void store(T* to, float (&from)[kElements]) {
  T stored[kElements];
  for (int i = 0; i < kElements; ++i) {
    stored[i] = nearest<T>(from[i]);
    from[i] = kernels::widened(stored[i]);
  }
  store_stored(to, stored);
}

/// [Note: Masters in two halves].
template <int kElements>
GPU_FUNCTION void load_halves(const uint16_t* travelling, const int16_t* low,
                              float (&to)[kElements]) {
  uint16_t high[kElements];
  int16_t rest[kElements];
  load_stored(travelling, high);
  load_stored(low, rest);
  for (int i = 0; i < kElements; ++i) {
    to[i] = kernels::joined({high[i], rest[i]});
  }
}
template <int kElements>
GPU_FUNCTION void store_halves(uint16_t* travelling, int16_t* low, const float (&from)[kElements]) {
  uint16_t high[kElements];
  int16_t rest[kElements];
  for (int i = 0; i < kElements; ++i) {
    const kernels::Halves halves = kernels::in_halves(from[i]);
    high[i] = halves.travelling;
    rest[i] = halves.low;
  }
  store_stored(travelling, high);
  store_stored(low, rest);
}

}  // namespace sherd::cuda
