#pragma once
// Flat ranges of fp32 and bf16, 16 bytes at a time if all arrays of a kernel allow it, single
// elements before and after; and the kernels that scale, round, split and join values.

#include "gpu/block.cuh"
#include "kernels/kernels.h"

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

/// Values of 16 bits in pairs as words hold them, the first one below.
template <int kElements>
inline constexpr int kWords = kElements / 2;

template <int kElements>
GPU_FUNCTION void load_pairs(const void* from, uint32_t (&to)[kElements]) {
  const Words words = gpu::load_16_bytes<Words>(from);
  for (int i = 0; i < kElements; ++i) {
    to[i] = words.values[i];
  }
}
template <int kElements>
GPU_FUNCTION void store_pairs(void* to, const uint32_t (&from)[kElements]) {
  Words words;
  for (int i = 0; i < kElements; ++i) {
    words.values[i] = from[i];
  }
  gpu::store_16_bytes(to, words);
}

/// fp32, and bf16 and fp16 as their bits, to floats.
template <int kElements>
GPU_FUNCTION void load(const float* from, float (&to)[kElements]) {
  if constexpr (kElements == 1) {
    to[0] = gpu::load_value(from);
  } else {
    load_floats(from, to);
  }
}
template <int kElements>
GPU_FUNCTION void load(const uint16_t* from, float (&to)[kElements]) {
  if constexpr (kElements == 1) {
    to[0] = kernels::widened(gpu::load_value(from));
  } else {
    uint32_t words[kWords<kElements>];
    load_pairs(from, words);
    for (int i = 0; i < kElements; ++i) {
      to[i] = gpu::float_in<gpu::BFloat16>(words[i / 2], i % 2);
    }
  }
}

template <int kElements>
GPU_FUNCTION void load(const kernels::Float16* from, float (&to)[kElements]) {
  if constexpr (kElements == 1) {
    to[0] = gpu::float_in<gpu::Half>(gpu::load_value(from).bits, 0);
  } else {
    uint32_t words[kWords<kElements>];
    load_pairs(from, words);
    for (int i = 0; i < kElements; ++i) {
      to[i] = gpu::float_in<gpu::Half>(words[i / 2], i % 2);
    }
  }
}

/// Stores bf16 whose bits are the upper halves of `bits`.
template <int kElements>
GPU_FUNCTION void store_upper_halves(uint16_t* to, const uint32_t (&bits)[kElements]) {
  if constexpr (kElements == 1) {
    gpu::store_value(to, static_cast<uint16_t>(bits[0] >> 16));
  } else {
    uint32_t words[kWords<kElements>];
    for (int i = 0; i < kWords<kElements>; ++i) {
      words[i] = gpu::upper_halves(bits[2 * i], bits[2 * i + 1]);
    }
    store_pairs(to, words);
  }
}

/// Rounded to the nearest; `from` becomes what is stored.
template <int kElements>
GPU_FUNCTION void store(float* to, float (&from)[kElements]) {
  if constexpr (kElements == 1) {
    gpu::store_value(to, from[0]);
  } else {
    store_floats(to, from);
  }
}
template <int kElements>
GPU_FUNCTION void store(uint16_t* to, float (&from)[kElements]) {
  uint32_t bits[kElements];
  for (int i = 0; i < kElements; ++i) {
    from[i] = gpu::to_float(gpu::rounded<gpu::BFloat16>(from[i]));
    bits[i] = kernels::bits_of(from[i]);
  }
  store_upper_halves(to, bits);
}

/// [Note: Masters in two halves].
template <int kElements>
GPU_FUNCTION void load_halves(const uint16_t* travelling, const int16_t* low,
                              float (&to)[kElements]) {
  if constexpr (kElements == 1) {
    to[0] = kernels::joined({gpu::load_value(travelling), gpu::load_value(low)});
  } else {
    uint32_t high[kWords<kElements>];
    uint32_t rest[kWords<kElements>];
    load_pairs(travelling, high);
    load_pairs(low, rest);
    for (int i = 0; i < kElements; ++i) {
      const int shift = i % 2 * 16;
      to[i] = kernels::joined({static_cast<uint16_t>(high[i / 2] >> shift),
                               static_cast<int16_t>(rest[i / 2] >> shift)});
    }
  }
}
template <int kElements>
GPU_FUNCTION void store_halves(uint16_t* travelling, int16_t* low, const float (&from)[kElements]) {
  if constexpr (kElements == 1) {
    const kernels::Halves halves = kernels::in_halves(from[0]);
    gpu::store_value(travelling, halves.travelling);
    gpu::store_value(low, halves.low);
  } else {
    uint32_t high[kWords<kElements>] = {};
    uint32_t rest[kWords<kElements>] = {};
    for (int i = 0; i < kElements; ++i) {
      const kernels::Halves halves = kernels::in_halves(from[i]);
      const int shift = i % 2 * 16;
      high[i / 2] |= static_cast<uint32_t>(halves.travelling) << shift;
      rest[i / 2] |= static_cast<uint32_t>(static_cast<uint16_t>(halves.low)) << shift;
    }
    store_pairs(travelling, high);
    store_pairs(low, rest);
  }
}

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
