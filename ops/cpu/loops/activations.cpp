// SwiGLU, GeGLU, GELU with a bias, and rotation of heads.

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

inline Vec sigmoid(const Vec& x) {
  return Vec(1.0F) / (Vec(1.0F) + exponential(x.neg()));
}

template <class T>
void swiglu(const T* gate, const T* up, T* out, int64_t numel) {
  for_each_step(numel, [&](int64_t i, int64_t count) {
    const Pair g = load(gate + i, count);
    store(out + i, g * each(g, sigmoid) * load(up + i, count), count);
  });
}

template <class T>
void swiglu_backward(const T* grad_out, const T* gate, const T* up, T* grad_gate, T* grad_up,
                     int64_t numel) {
  const Pair one = broadcast(1.0F);
  for_each_step(numel, [&](int64_t i, int64_t count) {
    const Pair g = load(gate + i, count);
    const Pair grad = load(grad_out + i, count);
    const Pair s = each(g, sigmoid);
    const Pair silu = g * s;
    const Pair slope = fma(silu, one - s, s);
    store(grad_gate + i, grad * load(up + i, count) * slope, count);
    store(grad_up + i, grad * silu, count);
  });
}

// gelu(x) = x × sigmoid(2 u) with u = √(2 ÷ π) (x + 0.044715 x³), for (1 + tanh u) ÷ 2 = sigmoid(2
// u).
constexpr float kTwiceRoot = 1.5957691216057308F;
constexpr float kCubic = 0.044715F;

inline Pair gelu_gate(const Pair& x) {
  const Pair square = x * x;
  const Pair u = x * fma(square, broadcast(kTwiceRoot * kCubic), broadcast(kTwiceRoot));
  return each(u, sigmoid);
}

// The slope of gelu at x, of which `gate` is gelu_gate().
inline Pair gelu_slope(const Pair& x, const Pair& gate) {
  const Pair one = broadcast(1.0F);
  const Pair inner = fma(x * x, broadcast(3.0F * kTwiceRoot * kCubic), broadcast(kTwiceRoot)) * x;
  return gate * fma(inner, one - gate, one);
}

template <class T>
void geglu(const T* gate, const T* up, T* out, int64_t numel) {
  for_each_step(numel, [&](int64_t i, int64_t count) {
    const Pair g = load(gate + i, count);
    store(out + i, g * gelu_gate(g) * load(up + i, count), count);
  });
}

template <class T>
void geglu_backward(const T* grad_out, const T* gate, const T* up, T* grad_gate, T* grad_up,
                    int64_t numel) {
  for_each_step(numel, [&](int64_t i, int64_t count) {
    const Pair g = load(gate + i, count);
    const Pair grad = load(grad_out + i, count);
    const Pair share = gelu_gate(g);
    store(grad_gate + i, grad * load(up + i, count) * gelu_slope(g, share), count);
    store(grad_up + i, grad * g * share, count);
  });
}

template <class T>
void bias_gelu(const T* input, const T* bias, T* out, int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair x = load(input + r * width + i, count) + load(bias + i, count);
      store(out + r * width + i, x * gelu_gate(x), count);
    });
  }
}

template <class T>
void bias_gelu_backward(const T* grad_out, const T* input, const T* bias, T* grad_input,
                        float* grad_bias_sum, int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    for_each_step(width, [&](int64_t i, int64_t count) {
      const Pair x = load(input + r * width + i, count) + load(bias + i, count);
      const Pair grad = load(grad_out + r * width + i, count) * gelu_slope(x, gelu_gate(x));
      store(grad_input + r * width + i, grad, count);
      if (grad_bias_sum != nullptr) {
        store(grad_bias_sum + i, grad + load(grad_bias_sum + i, count), count);
      }
    });
  }
}

template <class T>
void add_rows(const T* rows, float* sum, int64_t width, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    for_each_step(width, [&](int64_t i, int64_t count) {
      store(sum + i, load(rows + r * width + i, count) + load(sum + i, count), count);
    });
  }
}

template <class T>
void to_floats(const T* values, float* out, int64_t numel) {
  for_each_step(numel,
                [&](int64_t i, int64_t count) { store(out + i, load(values + i, count), count); });
}

template <class T>
void from_floats(const float* values, T* out, int64_t numel) {
  for_each_step(numel,
                [&](int64_t i, int64_t count) { store(out + i, load(values + i, count), count); });
}

template <class T>
void add_to_floats(const T* values, float* sum, int64_t numel) {
  add_rows(values, sum, numel, 0, 1);
}

template <class T>
void rotate_vector(const T* input, const float* cosine, const float* sine, float direction, T* out,
                   int64_t half) {
  if (half < kStep) {  // less than a step of vectors: the compiler's own loop is faster
    for (int64_t i = 0; i < half; ++i) {
      const auto a = static_cast<float>(input[i]), b = static_cast<float>(input[half + i]);
      const float s = sine[i] * direction;
      out[i] = static_cast<T>(a * cosine[i] - b * s);
      out[half + i] = static_cast<T>(a * s + b * cosine[i]);
    }
    return;
  }
  for_each_step(half, [&](int64_t i, int64_t count) {
    const Pair a = load(input + i, count);
    const Pair b = load(input + half + i, count);
    const Pair c = load(cosine + i, count);
    const Pair s = load(sine + i, count) * Vec(direction);
    store(out + i, a * c - b * s, count);
    store(out + half + i, fma(a, s, b * c), count);
  });
}

template <class T>
void rotate(const RotaryRows<T>& rows, T* out, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end;) {
    const int64_t t = row % rows.tokens, n = row / rows.tokens % rows.heads;
    const int64_t b = row / (rows.heads * rows.tokens);
    const T* input = rows.input + rows.input_strides.of(b, n, t);
    const float* cosine = rows.cosine + rows.cosine_strides.of(b, n, t);
    const float* sine = rows.sine + rows.sine_strides.of(b, n, t);
    for (const int64_t end_of_head = std::min(end, row - t + rows.tokens); row < end_of_head;
         ++row) {
      rotate_vector(input, cosine, sine, rows.direction, out + row * 2 * rows.half, rows.half);
      input += rows.input_strides.token;
      cosine += rows.cosine_strides.token;
      sine += rows.sine_strides.token;
    }
  }
}

}  // namespace

namespace CPU_CAPABILITY {

template <class T>
void add_activations(Kernels<T>& table) {
  table.swiglu = &swiglu<T>;
  table.swiglu_backward = &swiglu_backward<T>;
  table.geglu = &geglu<T>;
  table.geglu_backward = &geglu_backward<T>;
  table.bias_gelu = &bias_gelu<T>;
  table.bias_gelu_backward = &bias_gelu_backward<T>;
  table.add_rows = &add_rows<T>;
  table.add_to_floats = &add_to_floats<T>;
  table.to_floats = &to_floats<T>;
  table.from_floats = &from_floats<T>;
  table.rotate = &rotate<T>;
}
template void add_activations(Kernels<float>& table);
template void add_activations(Kernels<BFloat16>& table);
template void add_activations(Kernels<Half>& table);

}  // namespace CPU_CAPABILITY
}  // namespace sherd::ops::cpu
