#include <cstring>

#include <emmintrin.h>

#include "kernels.h"

namespace sherd::kernels {

void stream(const void* from, void* to, int64_t bytes) {
  const auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  constexpr int64_t kVector = sizeof(__m128i);
  int64_t done =
      (kVector - static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kVector)) % kVector;
  done = done < bytes ? done : bytes;
  std::memcpy(target, source, static_cast<size_t>(done));
  for (; done + kVector <= bytes; done += kVector) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + done),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + done)));
  }
  std::memcpy(target + done, source + done, static_cast<size_t>(bytes - done));
}

void end_of_stream() {
  _mm_sfence();
}

}  // namespace sherd::kernels
