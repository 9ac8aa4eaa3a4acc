#pragma once
// Rows of float, bf16 or fp16 as vectors of fp32, for the files that are compiled once per
// instruction set. Everything here and in those files is in a namespace of that set's name or
// without linkage, so that no code of one set is taken for another.

#include <algorithm>
#include <cstdint>

// In this order: functional.h does not compile on its own.
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include "ops/cpu/kernels.h"

namespace sherd::ops::cpu {
namespace {

using Vec = at::vec::Vectorized<float>;
using c10::BFloat16;
using c10::Half;

constexpr int64_t kLanes = Vec::size();
constexpr int64_t kStep = 2 * kLanes;  // of 16 bits, a whole register

// Two vectors: as many numbers of 16 bits as a register holds.
struct Pair {
  Vec low, high;
};

inline int64_t of_low(int64_t count) {
  return std::min(count, kLanes);
}
inline int64_t of_high(int64_t count) {
  return std::max<int64_t>(count - kLanes, 0);
}

// Loads `count` ≤ kStep numbers, and zeros after them.
inline Pair load(const float* from, int64_t count = kStep) {
  if (count == kStep) {
    return {Vec::loadu(from), Vec::loadu(from + kLanes)};
  }
  const Vec zero(0.0F);
  return {Vec::loadu(from, of_low(count)),
          count > kLanes ? Vec::loadu(from + kLanes, of_high(count)) : zero};
}
template <class T>
inline Pair load(const T* from, int64_t count = kStep) {
  using Bits = at::vec::Vectorized<T>;
  const Bits bits =
      count == kStep ? Bits::loadu(from) : Bits::loadu(from, static_cast<int16_t>(count));
  const auto [low, high] = at::vec::convert_to_float<T>(bits);
  return {low, high};
}
inline void store(float* to, const Pair& values, int64_t count = kStep) {
  if (count == kStep) {
    values.low.store(to);
    values.high.store(to + kLanes);
    return;
  }
  values.low.store(to, static_cast<int>(of_low(count)));
  if (count > kLanes) {
    values.high.store(to + kLanes, static_cast<int>(of_high(count)));
  }
}
template <class T>
inline void store(T* to, const Pair& values, int64_t count = kStep) {
  const auto bits = at::vec::convert_from_float<T>(values.low, values.high);
  if (count == kStep) {
    bits.store(to);
  } else {
    bits.store(to, static_cast<int>(count));
  }
}

// What a store to T and a load would give.
inline Pair rounded(const float* /*dtype*/, const Pair& values) {
  return values;
}
template <class T>
inline Pair rounded(const T* /*dtype*/, const Pair& values) {
  const auto [low, high] =
      at::vec::convert_to_float<T>(at::vec::convert_from_float<T>(values.low, values.high));
  return {low, high};
}

template <class F>
inline Pair each(const Pair& a, const F& f) {
  return {f(a.low), f(a.high)};
}
template <class F>
inline Pair each(const Pair& a, const Pair& b, const F& f) {
  return {f(a.low, b.low), f(a.high, b.high)};
}
inline Pair operator+(const Pair& a, const Pair& b) {
  return {a.low + b.low, a.high + b.high};
}
inline Pair operator-(const Pair& a, const Pair& b) {
  return {a.low - b.low, a.high - b.high};
}
inline Pair operator*(const Pair& a, const Pair& b) {
  return {a.low * b.low, a.high * b.high};
}
inline Pair operator*(const Pair& a, const Vec& b) {
  return {a.low * b, a.high * b};
}
inline Pair fma(const Pair& a, const Pair& b, const Pair& c) {
  return {at::vec::fmadd(a.low, b.low, c.low), at::vec::fmadd(a.high, b.high, c.high)};
}
inline Pair broadcast(float value) {
  return {Vec(value), Vec(value)};
}
// first, first + 1, …
inline Pair counting(float first) {
  return {Vec::arange(first, 1.0F), Vec::arange(first + static_cast<float>(kLanes), 1.0F)};
}
// `values` where there are `count` of them, `other` after.
inline Pair keep(const Pair& values, const Pair& other, int64_t count) {
  return {Vec::set(other.low, values.low, of_low(count)),
          Vec::set(other.high, values.high, of_high(count))};
}

inline float sum(const Pair& values) {
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; },
                                        values.low + values.high);
}
inline float largest(const Pair& values) {
  return at::vec::vec_reduce_all<float>(
      [](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); },
      at::vec::maximum(values.low, values.high));
}

// Calls f(i, count) for the steps of a row.
template <class F>
inline void for_each_step(int64_t width, const F& f) {
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    f(i, kStep);
  }
  if (i < width) {
    f(i, width - i);
  }
}

// exp_u20 clamps, and takes NaN for a large number: NaN must show.
inline Vec exponential(const Vec& x) {
  return Vec::blendv(x.exp_u20(), x, x.isnan());
}

// cap × tanh(x ÷ cap)
inline Vec soft_capped(const Vec& x, float cap) {
  return (x / Vec(cap)).tanh() * Vec(cap);
}
// Its derivative, by what it returned.
inline Vec slope_of_cap(const Vec& capped, float cap) {
  const Vec share = capped / Vec(cap);
  return Vec(1.0F) - share * share;
}

}  // namespace
}  // namespace sherd::ops::cpu
