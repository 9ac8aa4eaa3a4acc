#pragma once
// The part of CUDA that kernels use (gpu/device/gpu.h), played by the emulator.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "gpu/launch_failure.h"
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

template <class T>
float float_in(uint32_t word, int i) {
  T values[sizeof(word) / sizeof(T)];
  std::memcpy(values, &word, sizeof(word));
  return to_float(values[i]);
}

using Stream = void*;  ///< any one: a launch returns when its kernel has run

template <class T>
T load_value(const T* from) {
  emulator::count_read(sizeof(T));
  return *from;
}
template <class T>
void store_value(T* to, T value) {
  emulator::count_written(sizeof(T));
  *to = value;
}
template <class T>
T load_for_warp(const T* from) {
  emulator::count_read(emulator::thread_index() % kWarp == 0 ? sizeof(T) : 0);
  return *from;
}
template <class Pack>
Pack load_16_bytes(const void* from) {
  emulator::check_aligned(from, 16);
  emulator::count_read(16);
  return *static_cast<const Pack*>(from);
}
template <class Pack>
void store_16_bytes(void* to, const Pack& pack) {
  emulator::check_aligned(to, 16);
  emulator::count_written(16);
  *static_cast<Pack*>(to) = pack;
}

inline Stream stream_at(void* address) {
  return address;
}
template <int kThreads, class... Parameters, class... Arguments>
void launch(const char* name, Stream /*stream*/, int64_t blocks, void (*kernel)(Parameters...),
            Arguments... arguments) {
  if (const auto reason = emulator::take_launch_failure()) {
    throw launch_failure(ExitCode::Internal, name, reason->c_str());
  }
  emulator::play(blocks, kThreads, [&] { kernel(static_cast<Parameters>(arguments)...); },
                 {.seed = emulator::next_seed(), .kernel = name});
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

inline float fused(float a, float b, float c) {
  return std::fma(a, b, c);
}
// One unit of the last place away from the nearest: a GPU's estimate may be, too.
inline float reciprocal_estimate(float value) {
  return std::nextafter(1.0F / value, kInfinity);
}
inline float inverse_root_estimate(float value) {
  return std::nextafter(1.0F / std::sqrt(value), 0.0F);
}
inline uint32_t upper_halves(uint32_t first, uint32_t second) {
  return (second & 0xffff0000U) | (first >> 16);
}

}  // namespace sherd::gpu
