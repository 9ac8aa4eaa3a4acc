#pragma once
// Quotients and roots rounded as IEEE 754 has it, without the branches for unusual operands that
// take a third of the instructions of `/` and sqrt. They are the instructions that nvcc makes of
// `/` and sqrt for usual operands, with the hardware's `estimate`: on a GPU they round right
// because nvcc's do. An arbitrary estimate two units away, which the hardware may give for other
// values, rounds one root in ten million wrong.

#include <gpu.h>

namespace sherd::gpu {

/// a ÷ b, where `inverse` is 1 ÷ b rounded to the nearest, and neither the quotient nor a × 2⁻²⁴ is
/// below the smallest normal value or infinite.
GPU_FUNCTION float quotient_by(float a, float b, float inverse) {
  const float q = a * inverse;
  return fused(fused(-b, q, a), inverse, q);
}

/// The same of an estimate of 1 ÷ b.
GPU_FUNCTION float quotient(float a, float b, float estimate) {
  return quotient_by(a, b, fused(fused(-b, estimate, 1.0F), estimate, estimate));
}

/// √value, where `estimate` is one of 1 ÷ √value, of a value from 2⁻¹⁰¹ on that is finite.
GPU_FUNCTION float root(float value, float estimate) {
  const float s = value * estimate;
  return fused(fused(-s, s, value), estimate * 0.5F, s);
}

}  // namespace sherd::gpu
