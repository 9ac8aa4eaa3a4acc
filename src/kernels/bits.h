#pragma once
// fp32, bf16 and fp16 as their bits, and exact arithmetic alone: the same on CPUs and on GPUs.

#include <bit>
#include <cstdint>

namespace sherd::kernels {

[[nodiscard]] constexpr uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}
[[nodiscard]] constexpr bool is_nan(uint32_t bits) {
  return (bits & 0x7fffffffU) > 0x7f800000U;
}

constexpr float widened(float value) {
  return value;
}
constexpr float widened(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// fp16 as its bits.
struct Float16 {
  uint16_t bits = 0;
};
constexpr float widened(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffU) << 13;
  const uint32_t rebased = magnitude + (112U << 23);
  // No operand is subnormal in fp32: a thread may flush these to zero.
  const float subnormal = std::bit_cast<float>(rebased + (1U << 23)) - 0x1p-14F;
  const uint32_t finite = magnitude < 1U << 23 ? bits_of(subnormal) : rebased;
  const bool is_finite = magnitude < 0x7c00U << 13;
  return std::bit_cast<float>(sign | (is_finite ? finite : magnitude | 0x7f800000U));
}

/// To the nearest bf16, ties to even; NaN stays NaN.
[[nodiscard]] constexpr uint16_t narrowed(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  return static_cast<uint16_t>((is_nan(bits) ? (bits | 0x00400000U) : rounded) >> 16);
}

/// To the bf16 below or above, by 16 random bits.
[[nodiscard]] constexpr uint16_t narrowed_at_random(float value, uint32_t noise) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((is_nan(bits) ? (bits | 0x00400000U) : bits + (noise & 0xffffU)) >>
                               16);
}

/// 32 random bits of an element at a step: the same on any world size. (lowbias32 by C. Wellons.)
/// In two halves, for those who have many elements whose upper 32 bits and step are the same.
[[nodiscard]] constexpr uint32_t noise_seed(uint32_t upper, uint32_t step) {
  return (upper * 0x9e3779b9U) ^ (step * 0x85ebca6bU);
}
[[nodiscard]] constexpr uint32_t noise_of(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}
[[nodiscard]] constexpr uint32_t rounding_noise(uint64_t element, uint32_t step) {
  return noise_of(static_cast<uint32_t>(element) ^
                  noise_seed(static_cast<uint32_t>(element >> 32), step));
}
/// Moments use it at the step's number; masters, whose noise is another, at this one.
[[nodiscard]] constexpr uint32_t masters_number(uint32_t step) {
  return ~step;
}

/// [Note: Masters in two halves] An fp32 value is its rounding to bf16, which travels, and a signed
/// distance from there in units of its last place, which fits in 16 bits. Only a value halfway
/// above an even bf16 has no such distance (one in 131,072); it moves by one unit in its last
/// place, towards zero: where it is split, and before and after an update of whole masters, so that
/// both train to the same bits.
struct Halves {
  uint16_t travelling = 0;
  int16_t low = 0;
};
[[nodiscard]] constexpr float settled(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(bits - static_cast<uint32_t>((bits & 0x1ffffU) == 0x8000U));
}
[[nodiscard]] constexpr Halves in_halves(float value) {
  const float whole = settled(value);
  const uint32_t bits = std::bit_cast<uint32_t>(whole);
  const uint16_t travelling = narrowed(whole);
  const uint32_t distance = bits - (static_cast<uint32_t>(travelling) << 16);
  return {travelling, static_cast<int16_t>(is_nan(bits) ? 0U : distance)};
}
[[nodiscard]] constexpr float joined(Halves halves) {
  const uint32_t bits = static_cast<uint32_t>(halves.travelling) << 16;
  return std::bit_cast<float>(bits + static_cast<uint32_t>(int32_t{halves.low}));
}

}  // namespace sherd::kernels
