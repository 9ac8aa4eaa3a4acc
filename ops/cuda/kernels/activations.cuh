#pragma once
// SwiGLU, GELU with a bias, rotation of heads: each value is read once and written once.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"
#include "ops/cuda/kernels/column_sums.cuh"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

GPU_FUNCTION float sigmoid(float x) {
  return 1.0F / (1.0F + gpu::exponential(-x));
}

/// Calls `f(row, column, at)` for the packs that are this thread's: where one begins in its row,
/// and where among dense values.
template <int kCount, int kThreads, class F>
GPU_FUNCTION void for_packs(std::int64_t numel, std::int64_t width, const F& f) {
  const auto packs_of_row = static_cast<unsigned>(width / kCount);
  const std::int64_t packs = numel / kCount;
  for (std::int64_t pack = gpu::block_index() * kThreads + gpu::thread_index(); pack < packs;
       pack += gpu::block_count() * kThreads) {
    // In 32 bits, whose divisions are the cheaper ones.
    const std::int64_t row = static_cast<unsigned>(pack) / packs_of_row;
    f(row, (pack - row * packs_of_row) * kCount, pack * kCount);
  }
}

// gelu(x) = x × sigmoid(2 u) with u = √(2 ÷ π) (x + 0.044715 x³), for (1 + tanh u) ÷ 2 is
// sigmoid(2 u).
inline constexpr float kTwiceRoot = 1.5957691216057308F;
inline constexpr float kCubic = 0.044715F;

/// silu, or gelu, is x × gate_share(x).
template <bool kIsGelu>
GPU_FUNCTION float gate_share(float x) {
  return sigmoid(kIsGelu ? x * (kTwiceRoot + kTwiceRoot * kCubic * x * x) : x);
}

/// The slope of silu, or gelu, at x, of which `share` is gate_share().
template <bool kIsGelu>
GPU_FUNCTION float gate_slope(float x, float share) {
  if constexpr (kIsGelu) {
    const float inner = x * (kTwiceRoot + 3.0F * kTwiceRoot * kCubic * x * x);
    return share * (inner * (1.0F - share) + 1.0F);
  }
  return x * share * (1.0F - share) + share;
}

/// out = silu(gate) × up, or gelu(gate) × up. Bytes: 3 × numel × sizeof(T).
template <class T, int kThreads, bool kIsGelu = false>
GPU_KERNEL(kThreads)
swiglu(SwiGluRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  const auto gated = [of](std::int64_t row, std::int64_t column, std::int64_t at) {
    const Pack<T> gates = load_pack(of.gate + row * of.stride + column);
    const Pack<T> ups = load_pack(of.up + row * of.stride + column);
    Pack<T> result;
    for (int i = 0; i < kCount; ++i) {
      const float g = gpu::to_float(gates.values[i]);
      result.values[i] = gpu::rounded<T>(g * gate_share<kIsGelu>(g) * gpu::to_float(ups.values[i]));
    }
    store_pack(of.out + at, result);
  };
  for_packs<kCount, kThreads>(of.numel, of.width, gated);
}

/// Bytes: 5 × numel × sizeof(T).
template <class T, int kThreads, bool kIsGelu = false>
GPU_KERNEL(kThreads)
swiglu_backward(SwiGluBackwardRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  const auto gradients = [of](std::int64_t row, std::int64_t column, std::int64_t at) {
    const Pack<T> grads = load_pack(of.grad + at);
    const Pack<T> gates = load_pack(of.gate + row * of.stride + column);
    const Pack<T> ups = load_pack(of.up + row * of.stride + column);
    Pack<T> of_gate;
    Pack<T> of_up;
    for (int i = 0; i < kCount; ++i) {
      const float d = gpu::to_float(grads.values[i]);
      const float g = gpu::to_float(gates.values[i]);
      const float share = gate_share<kIsGelu>(g);
      of_gate.values[i] =
          gpu::rounded<T>(d * gpu::to_float(ups.values[i]) * gate_slope<kIsGelu>(g, share));
      of_up.values[i] = gpu::rounded<T>(d * (g * share));
    }
    store_pack(of.grad_gate + row * of.grad_stride + column, of_gate);
    store_pack(of.grad_up + row * of.grad_stride + column, of_up);
  };
  for_packs<kCount, kThreads>(of.numel, of.width, gradients);
}

/// out = gelu(input + bias); rows of `width`, a multiple of Pack<T>::kCount. Bytes: 2 × numel ×
/// sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
bias_gelu(const T* input, const T* bias, T* out, std::int64_t numel, std::int64_t width) {
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

/// The gradient of the input, and each part's of the bias, summed before it is rounded. Bytes: read
/// 3 × rows × columns × sizeof(T), a third of it the bias, which the caches hold; write rows ×
/// columns × sizeof(T) and 4 × parts × columns.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
bias_gelu_backward(BiasGeluBackwardRows<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  struct Read {
    Words grads;
    Words inputs;
  };
  const auto read = [of](std::int64_t row, std::int64_t column) {
    const std::int64_t at = row * of.columns + column;
    return Read{load_words(of.grad + at), load_words(of.input + at)};
  };
  const auto gradients = [of](const Read& from, std::int64_t row, std::int64_t column,
                              float(&result)[kCount]) {
    const Pack<T> biases = load_pack(of.bias + column);
    Pack<T> rounded;
    for (int i = 0; i < kCount; ++i) {
      const float x = float_at<T>(from.inputs, i) + gpu::to_float(biases.values[i]);
      const float gate = sigmoid(x * (kTwiceRoot + kTwiceRoot * kCubic * x * x));
      const float inner = x * (kTwiceRoot + 3.0F * kTwiceRoot * kCubic * x * x);
      result[i] = float_at<T>(from.grads, i) * gate * (1.0F + inner * (1.0F - gate));
      rounded.values[i] = gpu::rounded<T>(result[i]);
    }
    store_pack(of.grad_input + row * of.columns + column, rounded);
  };
  sum_columns<kThreads, kCount, 2>(of.bias_parts, of.rows, of.columns, read, gradients);
}

/// Turns the pairs (i, half + i) of each head by the angles of its token. Bytes: 2 × numel ×
/// sizeof(T), and the tables.
template <class T, int kThreads>
GPU_KERNEL(kThreads)
rotary(RotaryHeads<T> of) {
  constexpr int kCount = Pack<T>::kCount;
  const unsigned packs_of_half = static_cast<unsigned>(of.half / kCount);
  const std::int64_t packs = of.batch * of.heads * of.tokens * packs_of_half;
  const std::int64_t stride = gpu::block_count() * kThreads;
  for (std::int64_t pack = gpu::block_index() * kThreads + gpu::thread_index(); pack < packs;
       pack += stride) {
    // In 32 bits, whose divisions are the cheaper ones.
    const unsigned row = static_cast<unsigned>(pack) / packs_of_half;
    const int at = static_cast<int>(static_cast<unsigned>(pack) % packs_of_half) * kCount;
    const auto tokens = static_cast<unsigned>(of.tokens), heads = static_cast<unsigned>(of.heads);
    const std::int64_t token = row % tokens, head = row / tokens % heads;
    const std::int64_t batch = row / tokens / heads;
    const auto place = [&](const typename RotaryHeads<T>::Strides& strides) {
      return batch * strides.batch + head * strides.head + token * strides.token + at;
    };
    const std::int64_t from = place(of.input_strides), angles = place(of.table_strides);
    const Pack<T> first = load_pack(of.input + from);
    const Pack<T> second = load_pack(of.input + from + of.half);
    float cosines[kCount];
    float sines[kCount];
    load_floats(of.cosine + angles, cosines);
    load_floats(of.sine + angles, sines);
    Pack<T> turned;
    Pack<T> other;
    for (int i = 0; i < kCount; ++i) {
      const float a = gpu::to_float(first.values[i]), b = gpu::to_float(second.values[i]);
      const float c = cosines[i], s = sines[i] * of.direction;
      turned.values[i] = gpu::rounded<T>(a * c - b * s);
      other.values[i] = gpu::rounded<T>(a * s + b * c);
    }
    T* const to = of.out + std::int64_t{row} * 2 * of.half + at;
    store_pack(to, turned);
    store_pack(to + of.half, other);
  }
}

}  // namespace sherd::ops::cuda
