#pragma once
// SwiGLU, GELU with a bias, rotation of heads: each value is read once and written once.

#include "gpu/block.cuh"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

GPU_FUNCTION float sigmoid(float x) {
  return 1.0F / (1.0F + gpu::exponential(-x));
}

/// out = silu(gate) × up; `numel` a multiple of Pack<T>::kCount. Bytes: 3 × numel × sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
swiglu(const T* gate, const T* up, T* out, std::int64_t numel) {
  constexpr int kCount = Pack<T>::kCount;
  const std::int64_t stride = gpu::block_count() * kThreads * kCount;
  for (std::int64_t at = (gpu::block_index() * kThreads + gpu::thread_index()) * kCount; at < numel;
       at += stride) {
    const Pack<T> gates = load_pack(gate + at);
    const Pack<T> ups = load_pack(up + at);
    Pack<T> result;
    for (int i = 0; i < kCount; ++i) {
      const float g = gpu::to_float(gates.values[i]);
      result.values[i] = gpu::rounded<T>(g * sigmoid(g) * gpu::to_float(ups.values[i]));
    }
    store_pack(out + at, result);
  }
}

/// Bytes: 5 × numel × sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
swiglu_backward(const T* grad, const T* gate, const T* up, T* grad_gate, T* grad_up,
                std::int64_t numel) {
  constexpr int kCount = Pack<T>::kCount;
  const std::int64_t stride = gpu::block_count() * kThreads * kCount;
  for (std::int64_t at = (gpu::block_index() * kThreads + gpu::thread_index()) * kCount; at < numel;
       at += stride) {
    const Pack<T> grads = load_pack(grad + at);
    const Pack<T> gates = load_pack(gate + at);
    const Pack<T> ups = load_pack(up + at);
    Pack<T> of_gate;
    Pack<T> of_up;
    for (int i = 0; i < kCount; ++i) {
      const float d = gpu::to_float(grads.values[i]);
      const float g = gpu::to_float(gates.values[i]);
      const float s = sigmoid(g);
      const float silu = g * s;
      of_gate.values[i] =
          gpu::rounded<T>(d * gpu::to_float(ups.values[i]) * (silu * (1.0F - s) + s));
      of_up.values[i] = gpu::rounded<T>(d * silu);
    }
    store_pack(grad_gate + at, of_gate);
    store_pack(grad_up + at, of_up);
  }
}

// gelu(x) = x × sigmoid(2 u) with u = √(2 ÷ π) (x + 0.044715 x³), for (1 + tanh u) ÷ 2 = sigmoid(2
// u).
inline constexpr float kTwiceRoot = 1.5957691216057308F;
inline constexpr float kCubic = 0.044715F;

/// out = gelu(input + bias); rows of `width`, a multiple of Pack<T>::kCount. Bytes: 2 × numel ×
/// sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
bias_gelu(const T* input, const T* bias, T* out, std::int64_t numel, int width) {
  constexpr int kCount = Pack<T>::kCount;
  const std::int64_t stride = gpu::block_count() * kThreads * kCount;
  for (std::int64_t at = (gpu::block_index() * kThreads + gpu::thread_index()) * kCount; at < numel;
       at += stride) {
    const Pack<T> inputs = load_pack(input + at);
    const Pack<T> biases = load_pack(bias + at % width);
    Pack<T> result;
    for (int i = 0; i < kCount; ++i) {
      const float x = gpu::to_float(inputs.values[i]) + gpu::to_float(biases.values[i]);
      result.values[i] =
          gpu::rounded<T>(x * sigmoid(x * (kTwiceRoot + kTwiceRoot * kCubic * x * x)));
    }
    store_pack(out + at, result);
  }
}

/// The gradient of the input, which sum_rows() makes the bias's of. Bytes: 3 × numel × sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
bias_gelu_backward(const T* grad, const T* input, const T* bias, T* grad_input, std::int64_t numel,
                   int width) {
  constexpr int kCount = Pack<T>::kCount;
  const std::int64_t stride = gpu::block_count() * kThreads * kCount;
  for (std::int64_t at = (gpu::block_index() * kThreads + gpu::thread_index()) * kCount; at < numel;
       at += stride) {
    const Pack<T> grads = load_pack(grad + at);
    const Pack<T> inputs = load_pack(input + at);
    const Pack<T> biases = load_pack(bias + at % width);
    Pack<T> result;
    for (int i = 0; i < kCount; ++i) {
      const float x = gpu::to_float(inputs.values[i]) + gpu::to_float(biases.values[i]);
      const float gate = sigmoid(x * (kTwiceRoot + kTwiceRoot * kCubic * x * x));
      const float inner = x * (kTwiceRoot + 3.0F * kTwiceRoot * kCubic * x * x);
      result.values[i] =
          gpu::rounded<T>(gpu::to_float(grads.values[i]) * gate * (1.0F + inner * (1.0F - gate)));
    }
    store_pack(grad_input + at, result);
  }
}

/// Heads [tokens, heads, 2 × half], the pairs (i, half + i) turned by the angles of their token:
/// forwards with direction 1, back with −1. `half` a multiple of Pack<T>::kCount. Bytes: 2 × numel
/// × sizeof(T), and the tables.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
rotary(const T* input, const float* cosine, const float* sine, T* out, std::int64_t tokens,
       int heads, int half, float direction) {
  constexpr int kCount = Pack<T>::kCount;
  const std::int64_t packs = tokens * heads * (half / kCount);
  const std::int64_t stride = gpu::block_count() * kThreads;
  for (std::int64_t pack = gpu::block_index() * kThreads + gpu::thread_index(); pack < packs;
       pack += stride) {
    const std::int64_t row = pack / (half / kCount);
    const int at = static_cast<int>(pack % (half / kCount)) * kCount;
    const std::int64_t angles = row / heads * half + at;
    const std::int64_t begin = row * 2 * half + at;
    const Pack<T> first = load_pack(input + begin);
    const Pack<T> second = load_pack(input + begin + half);
    float cosines[kCount];
    float sines[kCount];
    load_floats(cosine + angles, cosines);
    load_floats(sine + angles, sines);
    Pack<T> turned;
    Pack<T> other;
    for (int i = 0; i < kCount; ++i) {
      const float a = gpu::to_float(first.values[i]), b = gpu::to_float(second.values[i]);
      const float c = cosines[i], s = sines[i] * direction;
      turned.values[i] = gpu::rounded<T>(a * c - b * s);
      other.values[i] = gpu::rounded<T>(a * s + b * c);
    }
    store_pack(out + begin, turned);
    store_pack(out + begin + half, other);
  }
}

}  // namespace sherd::ops::cuda
