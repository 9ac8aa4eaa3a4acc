#pragma once
// The part of CUDA that kernels use (gpu/device/gpu.h), played by the emulator.

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "tests/emulator/emulator.h"

#define GPU_KERNEL(...) void
#define GPU_FUNCTION inline
#define GPU_SHARED(type, name, count) auto& name = sherd::emulator::shared<type, count>()

namespace sherd::gpu {

using BFloat16 = c10::BFloat16;
using Half = c10::Half;

inline constexpr int kWarp = emulator::kWarp;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

template <class T>
float to_float(T value) {
  return static_cast<float>(value);
}
template <class T>
T rounded(float value) {
  return static_cast<T>(value);
}

using Stream = void*;  ///< any one: a launch returns when its kernel has run
template <class Pack>
Pack load_16_bytes(const void* from) {
  emulator::check_aligned(from, 16);
  return *static_cast<const Pack*>(from);
}
template <class Pack>
void store_16_bytes(void* to, const Pack& pack) {
  emulator::check_aligned(to, 16);
  *static_cast<Pack*>(to) = pack;
}

inline Stream stream_at(void* address) {
  return address;
}
template <int kThreads, class... Parameters, class... Arguments>
void launch(Stream /*stream*/, int64_t blocks, void (*kernel)(Parameters...),
            Arguments... arguments) {
  emulator::play(blocks, kThreads, [&] { kernel(static_cast<Parameters>(arguments)...); },
                 {.seed = emulator::next_seed()});
}

inline int thread_index() {
  return emulator::thread_index();
}
inline int64_t block_index() {
  return emulator::block_index();
}
inline int64_t block_count() {
  return emulator::block_count();
}

inline void sync_block(std::source_location where = std::source_location::current()) {
  emulator::sync_block(where);
}
inline float shuffle_xor(float value, int bits,
                         std::source_location where = std::source_location::current()) {
  return static_cast<float>(emulator::shuffle_xor(value, bits, where));
}
inline double shuffle_xor(double value, int bits,
                          std::source_location where = std::source_location::current()) {
  return emulator::shuffle_xor(value, bits, where);
}

inline float exponential(float value) {
  return std::exp(value);
}
inline float logarithm(float value) {
  return std::log(value);
}
inline float square_root(float value) {
  return std::sqrt(value);
}
inline double square_root(double value) {
  return std::sqrt(value);
}
inline double logarithm(double value) {
  return std::log(value);
}
inline double fused(double a, double b, double c) {
  return std::fma(a, b, c);
}
// In 64 bits of mantissa, which is what sincospi() promises of a double and more.
inline void sine_cosine_of_pi(double value, double& sine, double& cosine) {
  const long double angle = std::numbers::pi_v<long double> * static_cast<long double>(value);
  sine = static_cast<double>(std::sin(angle));
  cosine = static_cast<double>(std::cos(angle));
}

}  // namespace sherd::gpu
