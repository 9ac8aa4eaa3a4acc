// RMSNorm and LayerNorm over rows.

#include <cmath>
#include <type_traits>

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

// Row r of what is normalised.
template <class T>
const T* row_of(const NormTerms<T>& terms, int64_t width, int64_t r) {
  const T* input = terms.input + r * width;
  if (terms.residual == nullptr) {
    return input;
  }
  const T* residual = terms.residual + r * width;
  T* sum = terms.sum + r * width;
  for_each_step(width, [&](int64_t i, int64_t count) {
    store(sum + i, load(input + i, count) + load(residual + i, count), count);
  });
  return sum;
}

template <class T>
Pair plus(const Pair& values, const T* more, int64_t at, int64_t count) {
  return more == nullptr ? values : values + load(more + at, count);
}

// Calls `f` with the gain as a constant.
template <class F>
void with_gain(RmsGain gain, const F& f) {
  switch (gain) {
    case RmsGain::Rounded:
      return f(std::integral_constant<RmsGain, RmsGain::Rounded>());
    case RmsGain::Wide:
      return f(std::integral_constant<RmsGain, RmsGain::Wide>());
    case RmsGain::OnePlus:
      return f(std::integral_constant<RmsGain, RmsGain::OnePlus>());
  }
}

// What the normalised input is multiplied by.
template <RmsGain gain, class T>
Pair factor_of(const T* weight, int64_t i, int64_t count) {
  const Pair w = load(weight + i, count);
  if constexpr (gain == RmsGain::OnePlus) {
    return w + broadcast(1.0F);
  }
  return w;
}

// The normalised input as it is multiplied. `like`: of the dtype that it is rounded to.
template <RmsGain gain, class T>
Pair multiplied(const T* like, const Pair& n) {
  if constexpr (gain == RmsGain::Rounded) {
    return rounded(like, n);
  }
  return n;
}

template <RmsGain gain, class T>
void rms_norm_rows(const NormTerms<T>& terms, const T* weight, float epsilon, T* out,
                   float* inverse_rms, int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = row_of(terms, width, r);
    T* y = out + r * width;
    Pair squares = broadcast(0.0F);
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair v = load(x + i, count);
      squares = fma(v, v, squares);
    });
    const float inverse = 1.0F / std::sqrt(sum(squares) / static_cast<float>(width) + epsilon);
    inverse_rms[r] = inverse;
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair n = multiplied<gain>(y, load(x + i, count) * Vec(inverse));
      store(y + i, n * factor_of<gain>(weight, i, count), count);
    });
  }
}

// With n = input ÷ rms and g = gradient × weight: d input = (g − n · mean(g · n)) ÷ rms.
template <RmsGain gain, class T>
void rms_norm_backward_rows(const T* grad_out, const T* grad_sum, const T* input, const T* weight,
                            const float* inverse_rms, T* grad_input, float* grad_weight_sum,
                            int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = input + r * width;
    const T* grad = grad_out + r * width;
    const Vec inverse(inverse_rms[r]);
    Pair projection = broadcast(0.0F);
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair n = load(x + i, count) * inverse;
      const Pair g = load(grad + i, count);
      projection = fma(g * factor_of<gain>(weight, i, count), n, projection);
      if (grad_weight_sum != nullptr) {
        const Pair sum_so_far = load(grad_weight_sum + i, count);
        store(grad_weight_sum + i, fma(g, multiplied<gain>(x, n), sum_so_far), count);
      }
    });
    const Pair mean = broadcast(-sum(projection) / static_cast<float>(width));
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair n = load(x + i, count) * inverse;
      const Pair g = load(grad + i, count) * factor_of<gain>(weight, i, count);
      const Pair through = fma(n, mean, g) * inverse;
      store(grad_input + r * width + i, plus(through, grad_sum, r * width + i, count), count);
    });
  }
}

template <class T>
void rms_norm(RmsGain gain, const NormTerms<T>& terms, const T* weight, float epsilon, T* out,
              float* inverse_rms, int64_t width, int64_t begin, int64_t end) {
  with_gain(gain, [&](auto constant) {
    rms_norm_rows<constant()>(terms, weight, epsilon, out, inverse_rms, width, begin, end);
  });
}

template <class T>
void rms_norm_backward(RmsGain gain, const T* grad_out, const T* grad_sum, const T* input,
                       const T* weight, const float* inverse_rms, T* grad_input,
                       float* grad_weight_sum, int64_t width, int64_t begin, int64_t end) {
  with_gain(gain, [&](auto constant) {
    rms_norm_backward_rows<constant()>(grad_out, grad_sum, input, weight, inverse_rms, grad_input,
                                       grad_weight_sum, width, begin, end);
  });
}

template <class T>
void layer_norm(const NormTerms<T>& terms, const T* weight, const T* bias, float epsilon, T* out,
                float* statistics, int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = row_of(terms, width, r);
    Pair total = broadcast(0.0F);
    for_each_step(width, [&](int64_t i, int64_t count) { total = total + load(x + i, count); });
    const float mean = sum(total) / static_cast<float>(width);
    Pair squares = broadcast(0.0F);
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair d = keep(load(x + i, count) - broadcast(mean), broadcast(0.0F), count);
      squares = fma(d, d, squares);
    });
    const float inverse = 1.0F / std::sqrt(sum(squares) / static_cast<float>(width) + epsilon);
    statistics[2 * r] = mean;
    statistics[2 * r + 1] = inverse;
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair n = (load(x + i, count) - broadcast(mean)) * Vec(inverse);
      store(out + r * width + i, fma(n, load(weight + i, count), load(bias + i, count)), count);
    });
  }
}

// With n = (input − mean) ÷ deviation and g = gradient × weight:
// d input = (g − mean(g) − n · mean(g · n)) ÷ deviation.
template <class T>
void layer_norm_backward(const T* grad_out, const T* grad_sum, const T* input, const T* weight,
                         const float* statistics, T* grad_input, float* grad_weight_sum,
                         float* grad_bias_sum, int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = input + r * width;
    const T* grad = grad_out + r * width;
    const Pair mean = broadcast(statistics[2 * r]);
    const Vec inverse(statistics[2 * r + 1]);
    Pair projection = broadcast(0.0F);
    Pair total = broadcast(0.0F);
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair n = (load(x + i, count) - mean) * inverse;
      const Pair grad_here = load(grad + i, count);
      const Pair g = grad_here * load(weight + i, count);
      projection = fma(g, n, projection);
      total = total + g;
      if (grad_weight_sum != nullptr) {
        store(grad_weight_sum + i, fma(grad_here, n, load(grad_weight_sum + i, count)), count);
      }
      if (grad_bias_sum != nullptr) {
        store(grad_bias_sum + i, grad_here + load(grad_bias_sum + i, count), count);
      }
    });
    const Pair mean_projection = broadcast(-sum(projection) / static_cast<float>(width));
    const Pair mean_gradient = broadcast(sum(total) / static_cast<float>(width));
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair n = (load(x + i, count) - mean) * inverse;
      const Pair g = load(grad + i, count) * load(weight + i, count) - mean_gradient;
      const Pair through = fma(n, mean_projection, g) * inverse;
      store(grad_input + r * width + i, plus(through, grad_sum, r * width + i, count), count);
    });
  }
}

}  // namespace

namespace CPU_CAPABILITY {

template <class T>
void add_norms(Kernels<T>& table) {
  table.rms_norm = &rms_norm<T>;
  table.rms_norm_backward = &rms_norm_backward<T>;
  table.layer_norm = &layer_norm<T>;
  table.layer_norm_backward = &layer_norm_backward<T>;
}
template void add_norms(Kernels<float>& table);
template void add_norms(Kernels<BFloat16>& table);
template void add_norms(Kernels<Half>& table);

}  // namespace CPU_CAPABILITY
}  // namespace sherd::ops::cpu
