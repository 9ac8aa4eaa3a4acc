#pragma once
// AdamW over flat shards in one pass, to the bits of kernels::adamw(): the same operations in the
// same order, each rounded (no multiplication is fused into an addition: --fmad=false).

#include "gpu/rounding.cuh"
#include "kernels/cuda/kernels/flat.cuh"

namespace sherd::cuda {

/// Elements of a parameter whose noise is wanted: those from one on, at a step.
struct Noise {
  uint64_t first = 0;
  uint32_t step = 0;

  template <int kElements>
  GPU_FUNCTION void of(uint32_t (&noise)[kElements]) const {
    const auto lower = static_cast<uint32_t>(first), upper = static_cast<uint32_t>(first >> 32);
    const uint32_t seed = kernels::noise_seed(upper, step);
    for (int i = 0; i < kElements; ++i) {
      noise[i] = (lower + static_cast<uint32_t>(i)) ^ seed;
    }
    if (lower > ~uint32_t{0} - kElements) {  // the upper bits change on the way
      for (int i = 0; i < kElements; ++i) {
        const uint64_t element = first + static_cast<uint64_t>(i);
        noise[i] = static_cast<uint32_t>(element) ^
                   kernels::noise_seed(static_cast<uint32_t>(element >> 32), step);
      }
    }
    for (int i = 0; i < kElements; ++i) {
      noise[i] = kernels::noise_of(noise[i]);
    }
  }
};

/// Rounded to bf16 by 16 bits of noise from `shift` on, as kernels::narrowed_at_random(). `from` is
/// what arithmetic gave: a NaN of it has the upper half of a NaN.
template <int kElements>
GPU_FUNCTION void store_at_random(uint16_t* to, const float (&from)[kElements],
                                  const uint32_t (&noise)[kElements], int shift) {
  uint32_t bits[kElements];
  for (int i = 0; i < kElements; ++i) {
    const uint32_t added = (noise[i] >> shift) & 0xffffU;
    bits[i] = kernels::bits_of(from[i]) + (from[i] == from[i] ? added : 0U);
  }
  store_upper_halves(to, bits);
}

// Masters, in the four ways of kernels::AdamWShards. `noise` is the masters'.

/// fp32, which travel. Bytes of one: 4 read, 4 written.
struct WholeMasters {
  float* master = nullptr;
  template <int kElements>
  GPU_FUNCTION void open(int64_t at, float (&values)[kElements]) const {
    load(master + at, values);
  }
  template <int kElements>
  GPU_FUNCTION void close(int64_t at, float (&values)[kElements], const Noise& /*noise*/) const {
    store(master + at, values);
  }
};

/// fp32, settled, whose rounding travels. Bytes: 4 read, 6 written.
struct RoundedMasters {
  float* master = nullptr;
  uint16_t* travelling = nullptr;
  template <int kElements>
  GPU_FUNCTION void open(int64_t at, float (&values)[kElements]) const {
    load(master + at, values);
    settle(values);
  }
  template <int kElements>
  GPU_FUNCTION void close(int64_t at, float (&values)[kElements], const Noise& /*noise*/) const {
    settle(values);
    store(master + at, values);
    store(travelling + at, values);
  }
  template <int kElements>
  static GPU_FUNCTION void settle(float (&values)[kElements]) {
    for (int i = 0; i < kElements; ++i) {
      values[i] = kernels::settled(values[i]);
    }
  }
};

/// [Note: Masters in two halves]. Bytes: 4 read, 4 written.
struct MastersInHalves {
  uint16_t* travelling = nullptr;
  int16_t* low = nullptr;
  template <int kElements>
  GPU_FUNCTION void open(int64_t at, float (&values)[kElements]) const {
    load_halves(travelling + at, low + at, values);
  }
  template <int kElements>
  GPU_FUNCTION void close(int64_t at, float (&values)[kElements], const Noise& /*noise*/) const {
    store_halves(travelling + at, low + at, values);
  }
};

/// bf16 alone, rounded at random. Bytes: 2 read, 2 written.
struct NarrowMasters {
  uint16_t* travelling = nullptr;
  template <int kElements>
  GPU_FUNCTION void open(int64_t at, float (&values)[kElements]) const {
    load(travelling + at, values);
  }
  template <int kElements>
  GPU_FUNCTION void close(int64_t at, float (&values)[kElements], const Noise& noise) const {
    uint32_t bits[kElements];
    noise.of(bits);
    store_at_random(travelling + at, values, bits, 0);
  }
};

/// Both moments, in fp32, or in bf16 rounded at random: the lower half of the noise is the first
/// one's.
template <int kElements>
GPU_FUNCTION void store_moments(float* exp_avg, float* exp_avg_sq, float (&m)[kElements],
                                float (&v)[kElements], const Noise& /*noise*/) {
  store(exp_avg, m);
  store(exp_avg_sq, v);
}
template <int kElements>
GPU_FUNCTION void store_moments(uint16_t* exp_avg, uint16_t* exp_avg_sq, float (&m)[kElements],
                                float (&v)[kElements], const Noise& noise) {
  uint32_t bits[kElements];
  noise.of(bits);
  store_at_random(exp_avg, m, bits, 0);
  store_at_random(exp_avg_sq, v, bits, 16);
}

/// A step as the kernel gets it.
struct AdamWNumbers {
  kernels::AdamWStep step;
  float inverse_correction = 1;  ///< 1 ÷ step.bias_correction2_sqrt
};

GPU_FUNCTION void update_moments(float& exp_avg, float& exp_avg_sq, float gradient,
                                 const kernels::AdamWStep& s) {
  exp_avg = exp_avg + s.one_minus_beta1 * (gradient - exp_avg);
  exp_avg_sq = s.beta2 * exp_avg_sq + s.one_minus_beta2 * gradient * gradient;
}

/// Whether direction_of_usual() has the bits of direction(). It has if the root, both quotients and
/// their remainders are normal values, which these bounds ensure for a correction of 2⁻¹³ or more
/// and an eps below 2³⁰; or if both moments are 0 (an embedding's row that no token used) and eps
/// is not.
GPU_FUNCTION int is_usual(float exp_avg, float exp_avg_sq, float eps) {
  constexpr uint32_t kLeastSquare = 0x0d000000U, kMostSquare = 0x53800000U;  // 2⁻¹⁰¹, 2⁴⁰
  constexpr uint32_t kLeast = 0x12800000U, kMost = 0x5d800000U;              // 2⁻⁹⁰, 2⁶⁰
  const uint32_t magnitude = kernels::bits_of(exp_avg) & 0x7fffffffU;
  const uint32_t square = kernels::bits_of(exp_avg_sq);
  const int is_usual_square = static_cast<int>(square - kLeastSquare <= kMostSquare - kLeastSquare);
  const int are_zero = static_cast<int>((magnitude | square) == 0U) & static_cast<int>(eps > 0);
  const int is_zero_or_more = static_cast<int>(magnitude - 1U >= kLeast - 1U);
  return (is_usual_square | are_zero) & is_zero_or_more & static_cast<int>(magnitude <= kMost);
}

GPU_FUNCTION float direction(float exp_avg, float exp_avg_sq, const AdamWNumbers& numbers) {
  const kernels::AdamWStep& s = numbers.step;
  return exp_avg / (gpu::square_root(exp_avg_sq) / s.bias_correction2_sqrt + s.eps);
}
GPU_FUNCTION float direction_of_usual(float exp_avg, float exp_avg_sq,
                                      const AdamWNumbers& numbers) {
  const kernels::AdamWStep& s = numbers.step;
  const float root = gpu::root(exp_avg_sq, gpu::inverse_root_estimate(exp_avg_sq));
  const float denominator =
      gpu::quotient_by(root, s.bias_correction2_sqrt, numbers.inverse_correction) + s.eps;
  const float ratio = gpu::quotient(exp_avg, denominator, gpu::reciprocal_estimate(denominator));
  return exp_avg == 0.0F ? exp_avg : ratio;  // with its sign
}

/// masters = masters × keep − step size × direction. What all of a thread's elements have in common
/// decides once how: `/` and sqrt for each element would be a third of all instructions, and they,
/// not bytes, are what moments and masters of 16 bits wait for.
template <int kElements>
GPU_FUNCTION void update_masters(float (&masters)[kElements], const float (&m)[kElements],
                                 const float (&v)[kElements], const AdamWNumbers& numbers) {
  int are_usual = 1;  // no bool, whose operators branch
  for (int i = 0; i < kElements; ++i) {
    are_usual &= is_usual(m[i], v[i], numbers.step.eps);
  }
  float directions[kElements];
  if (are_usual != 0) {
    for (int i = 0; i < kElements; ++i) {
      directions[i] = direction_of_usual(m[i], v[i], numbers);
    }
  } else {
    for (int i = 0; i < kElements; ++i) {
      directions[i] = direction(m[i], v[i], numbers);
    }
  }
  for (int i = 0; i < kElements; ++i) {
    masters[i] = masters[i] * numbers.step.keep - numbers.step.step_size * directions[i];
  }
}

/// What a step reads and writes, all of one length.
template <class Masters, class Moment, class Gradient>
struct AdamWArrays {
  Masters masters;
  Moment* exp_avg = nullptr;
  Moment* exp_avg_sq = nullptr;
  const Gradient* gradient = nullptr;
  uint64_t first_element = 0;  ///< number of the first one in its parameter
};

/// `grad_scale`: one float, of a kernel before, NaN where nothing is to be written; null: that of
/// the step. Bytes of one element: the masters', sizeof(Gradient), and 4 × sizeof(Moment).
template <class Masters, class Moment, class Gradient, int kThreads>
GPU_KERNEL(kThreads, 4)
adamw(Flat flat, AdamWArrays<Masters, Moment, Gradient> of, AdamWNumbers numbers,
      const float* grad_scale) {
  const kernels::AdamWStep& step = numbers.step;
  const float scale = grad_scale != nullptr ? gpu::load_for_warp(grad_scale) : step.grad_scale;
  if (scale != scale) {
    return;
  }
  for_flat<kThreads>(flat, [&]<int kElements>(Count<kElements>, int64_t at) {
    float master[kElements];
    float m[kElements];
    float v[kElements];
    float g[kElements];
    of.masters.open(at, master);
    load(of.exp_avg + at, m);
    load(of.exp_avg_sq + at, v);
    load(of.gradient + at, g);
    for (int i = 0; i < kElements; ++i) {
      update_moments(m[i], v[i], g[i] * scale, step);
    }
    update_masters(master, m, v, numbers);
    const uint64_t first = of.first_element + static_cast<uint64_t>(at);
    of.masters.close(at, master, {first, kernels::masters_number(step.number)});
    store_moments(of.exp_avg + at, of.exp_avg_sq + at, m, v, {first, step.number});
  });
}

}  // namespace sherd::cuda
