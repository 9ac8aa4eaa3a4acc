#pragma once
// AdamW over flat shards in one pass, to the bits of kernels::adamw(): the same operations in the
// same order, each rounded (no multiplication is fused into an addition: --fmad=false).

#include "cuda/kernels/flat.cuh"
#include "kernels/kernels.h"

namespace sherd::cuda {

/// The noise of the elements from one on.
struct Noise {
  uint64_t first = 0;
  uint32_t step = 0;
  [[nodiscard]] GPU_FUNCTION uint32_t operator()(int i) const {
    return kernels::rounding_noise(first + static_cast<uint64_t>(i), step);
  }
};

template <int kElements>
GPU_FUNCTION void store_at_random(uint16_t* to, const float (&from)[kElements], const Noise& noise,
                                  int shift) {
  uint16_t stored[kElements];
  for (int i = 0; i < kElements; ++i) {
    stored[i] = kernels::narrowed_at_random(from[i], noise(i) >> shift);
  }
  store_stored(to, stored);
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
    store_at_random(travelling + at, values, noise, 0);
  }
};

/// Of fp32, or of bf16 that is rounded at random. `shift`: where in the noise its bits begin.
template <int kElements>
GPU_FUNCTION void store_moment(float* to, float (&from)[kElements], const Noise& /*noise*/,
                               int /*shift*/) {
  store(to, from);
}
template <int kElements>
GPU_FUNCTION void store_moment(uint16_t* to, float (&from)[kElements], const Noise& noise,
                               int shift) {
  store_at_random(to, from, noise, shift);
}

GPU_FUNCTION void update(float& master, float& exp_avg, float& exp_avg_sq, float gradient,
                         const kernels::AdamWStep& s) {
  exp_avg = exp_avg + s.one_minus_beta1 * (gradient - exp_avg);
  exp_avg_sq = s.beta2 * exp_avg_sq + s.one_minus_beta2 * gradient * gradient;
  const float denominator = gpu::square_root(exp_avg_sq) / s.bias_correction2_sqrt + s.eps;
  master = master * s.keep - s.step_size * (exp_avg / denominator);
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
GPU_KERNEL(kThreads, 3)
adamw(Flat flat, AdamWArrays<Masters, Moment, Gradient> of, kernels::AdamWStep step,
      const float* grad_scale) {
  const float scale = grad_scale != nullptr ? *grad_scale : step.grad_scale;
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
      update(master[i], m[i], v[i], g[i] * scale, step);
    }
    const uint64_t first = of.first_element + static_cast<uint64_t>(at);
    of.masters.close(at, master, {first, kernels::masters_number(step.number)});
    store_moment(of.exp_avg + at, m, {first, step.number}, 0);
    store_moment(of.exp_avg_sq + at, v, {first, step.number}, 16);
  });
}

}  // namespace sherd::cuda
