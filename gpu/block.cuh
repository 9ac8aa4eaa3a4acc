#pragma once
// What threads of a block do together, and how they read: sixteen bytes at a time.

#include <gpu.h>

namespace sherd::gpu {

/// Values that are read and written at once.
template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T values[kCount];
};

/// `from` is a multiple of 16 bytes.
template <class T>
GPU_FUNCTION Pack<T> load_pack(const T* from) {
  return gpu::load_16_bytes<Pack<T>>(from);
}
template <class T>
GPU_FUNCTION void store_pack(T* to, const Pack<T>& pack) {
  gpu::store_16_bytes(to, pack);
}

/// A pack as registers hold it: four words. A compiler keeps values of 16 bits that are used later
/// in a register each, which takes twice the room.
struct alignas(16) Words {
  static constexpr int kCount = 4;
  std::uint32_t values[kCount];
};
template <class T>
GPU_FUNCTION Words load_words(const T* from) {
  return gpu::load_16_bytes<Words>(from);
}
/// Value `i` of a pack of T.
template <class T>
GPU_FUNCTION float float_at(const Words& words, int i) {
  constexpr int kOfAWord = Pack<T>::kCount / Words::kCount;
  return gpu::float_in<T>(words.values[i / kOfAWord], i % kOfAWord);
}

/// Joins a value of each thread, join(a, b) in any order of its arguments, and gives the result to
/// each of them; in the same order whatever the order of threads.
template <int kThreads, class T, class Join>
GPU_FUNCTION T block_join(T value, const Join& join) {
  GPU_SHARED(T, of_warp, kThreads / gpu::kWarp);
  for (int bits = gpu::kWarp / 2; bits > 0; bits /= 2) {
    value = join(value, gpu::shuffle_xor(value, bits));
  }
  if (gpu::thread_index() % gpu::kWarp == 0) {
    of_warp[gpu::thread_index() / gpu::kWarp] = value;
  }
  gpu::sync_block();
  value = of_warp[0];
  for (int warp = 1; warp < kThreads / gpu::kWarp; ++warp) {
    value = join(value, of_warp[warp]);
  }
  gpu::sync_block();  // before the next one writes there
  return value;
}

/// As many floats as a pack of another type has values, in packs of their own.
template <int kCount>
GPU_FUNCTION void load_floats(const float* from, float (&to)[kCount]) {
  for (int at = 0; at < kCount; at += Pack<float>::kCount) {
    const Pack<float> pack = load_pack(from + at);
    for (int i = 0; i < Pack<float>::kCount; ++i) {
      to[at + i] = pack.values[i];
    }
  }
}
template <int kCount>
GPU_FUNCTION void store_floats(float* to, const float (&from)[kCount]) {
  for (int at = 0; at < kCount; at += Pack<float>::kCount) {
    Pack<float> pack;
    for (int i = 0; i < Pack<float>::kCount; ++i) {
      pack.values[i] = from[at + i];
    }
    store_pack(to + at, pack);
  }
}

struct Sum {
  template <class T>
  GPU_FUNCTION T operator()(T a, T b) const {
    return a + b;
  }
};
/// NaN where one of them is.
struct Largest {
  GPU_FUNCTION float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

template <int kThreads, class T>
GPU_FUNCTION T block_sum(T value) {
  return block_join<kThreads>(value, Sum());
}
template <int kThreads>
GPU_FUNCTION float block_max(float value) {
  return block_join<kThreads>(value, Largest());
}

}  // namespace sherd::gpu
