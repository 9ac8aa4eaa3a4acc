// The numbers of weights in 8 bits.

#include <cstring>

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

static_assert(kQ8Numbers % kStep == 0);

template <class T>
[[gnu::always_inline]] inline void dequantize_block(const uint8_t* codes, float scale, T* out) {
  alignas(64) float numbers[kQ8Numbers];
  for (int64_t i = 0; i < kQ8Numbers; ++i) {
    numbers[i] = scale * static_cast<float>(static_cast<int8_t>(codes[i]));
  }
  for (int64_t i = 0; i < kQ8Numbers; i += kStep) {
    store(out + i, load(numbers + i));
  }
}

template <class T>
void dequantize(const uint8_t* blocks, T* out, int64_t count) {
  for (int64_t first = 0; first < count; first += kStep) {
    const int64_t some = std::min(kStep, count - first);
    Half stored[kStep] = {};
    alignas(64) float scales[kStep];
    for (int64_t i = 0; i < some; ++i) {
      std::memcpy(&stored[i].x, blocks + (first + i) * kQ8Bytes, sizeof stored[i].x);
    }
    store(scales, load(stored, kStep));
    for (int64_t i = 0; i < some; ++i) {
      dequantize_block(blocks + (first + i) * kQ8Bytes + 2, scales[i],
                       out + (first + i) * kQ8Numbers);
    }
  }
}

}  // namespace

namespace CPU_CAPABILITY {

template <class T>
void add_quantized(Kernels<T>& table) {
  table.dequantize = &dequantize<T>;
}
template void add_quantized(Kernels<float>& table);
template void add_quantized(Kernels<BFloat16>& table);
template void add_quantized(Kernels<Half>& table);

}  // namespace CPU_CAPABILITY
}  // namespace sherd::ops::cpu
