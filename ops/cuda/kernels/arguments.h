#pragma once
// What kernels of many arguments are given. T is the kernel's dtype, or void where the host hands
// pointers on: plain C++, which needs no compiler for GPUs.

#include <cstdint>

namespace sherd::ops::cuda {

/// Rows of D = `width`, a multiple of Pack<T>::kCount; each pointer a multiple of 16 bytes.
template <class T>
struct NormRows {
  const T* input = nullptr;
  const T* residual = nullptr;  ///< null: the input alone is normalised
  const T* weight = nullptr;    ///< [D]
  const T* bias = nullptr;      ///< [D], of LayerNorm
  T* sum = nullptr;             ///< input + residual; null without a residual
  T* normalised = nullptr;
  float* statistics = nullptr;  ///< [2, rows]: means (of LayerNorm), and 1 ÷ deviation
  std::int64_t rows = 0;
  int width = 0;
  float epsilon = 0;
  bool is_wide = false;  ///< RMSNorm applies its weight in fp32 and rounds once
  float offset = 0;      ///< what the weight counts from, where it is wide
};

template <class T>
struct NormBackwardRows {
  const T* grad = nullptr;      ///< of what was normalised
  const T* grad_sum = nullptr;  ///< of the sum where it was handed out; null: none
  const T* sum = nullptr;       ///< what was normalised
  const T* weight = nullptr;
  const float* statistics = nullptr;  ///< as forward left them
  T* grad_input = nullptr;
  float* weight_parts = nullptr;  ///< [parts, D] of the weight's gradient; null: not wanted
  float* bias_parts = nullptr;    ///< the same of the bias
  std::int64_t rows = 0;
  int width = 0;
  bool is_wide = false;  ///< as NormRows
  float offset = 0;      ///< as NormRows
};

/// Rows of Q8_0 blocks (ops/q8_0.h): 34 bytes for 32 numbers. No more than 2³² packs.
template <class T>
struct QuantizedRows {
  const std::uint8_t* blocks = nullptr;
  T* out = nullptr;  ///< dense, at a multiple of 16 bytes
  std::int64_t rows = 0;
  std::int64_t width = 0;   ///< numbers of a row
  std::int64_t stride = 0;  ///< bytes from row to row
};

/// Rows of `width` values, which begin `stride` values apart, multiples of Pack<T>::kCount both.
/// Dense ones are one row. No more than 2³² packs.
template <class T>
struct SwiGluRows {
  const T* gate = nullptr;
  const T* up = nullptr;
  T* out = nullptr;  ///< dense
  std::int64_t numel = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;  ///< of gate and up
};

template <class T>
struct SwiGluBackwardRows {
  const T* grad = nullptr;  ///< dense
  const T* gate = nullptr;
  const T* up = nullptr;
  T* grad_gate = nullptr;
  T* grad_up = nullptr;
  T* product = nullptr;  ///< silu(gate) × up, dense; it may be `grad`. Null where not wanted
  std::int64_t numel = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;       ///< of gate and up
  std::int64_t grad_stride = 0;  ///< of their gradients
};

/// Rows of [rows, columns] of GELU with a bias, back; `columns` a multiple of Pack<T>::kCount.
template <class T>
struct BiasGeluBackwardRows {
  const T* grad = nullptr;
  const T* input = nullptr;
  const T* bias = nullptr;  ///< [columns]
  T* grad_input = nullptr;
  float* bias_parts = nullptr;  ///< [parts, columns]; null: not wanted
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// Heads [batch, heads, tokens, 2 × half], `half` a multiple of Pack<T>::kCount; strides of values,
/// and multiples of a pack's. No more than 2³² packs.
template <class T>
struct RotaryHeads {
  struct Strides {
    std::int64_t batch = 0;
    std::int64_t head = 0;
    std::int64_t token = 0;
  };
  const T* input = nullptr;
  const float* cosine = nullptr;  ///< angles of a token: `half` side by side
  const float* sine = nullptr;
  T* out = nullptr;  ///< contiguous
  Strides input_strides;
  Strides table_strides;  ///< of both tables; 0 where they are the same
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t tokens = 0;
  int half = 0;
  float direction = 1;  ///< −1 back
};

/// Rows of logits [rows, V], a block each; V a multiple of Pack<T>::kCount. A target outside of [0,
/// V) makes its loss NaN.
template <class T>
struct LogitRows {
  T* logits = nullptr;  ///< backward turns them into their gradient
  const std::int64_t* targets = nullptr;
  float* losses = nullptr;    ///< [rows]: log_sum − the target's logit
  float* log_sums = nullptr;  ///< [rows]: the logarithm of the sum of exponentials
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  std::int64_t scale_stride = 0;  ///< backward's scales: 0: one for all rows, 1: one per row
};

/// Heads [tokens, heads, width] that grow by a pack of columns; `width` a multiple of
/// Pack<T>::kCount, strides of values, and multiples of a pack's. No more than 2³² packs.
template <class T>
struct WiderHeads {
  const T* input = nullptr;
  T* out = nullptr;  ///< [tokens, heads, width + Pack<T>::kCount], contiguous
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t tokens = 0;
  int heads = 0;
  int width = 0;
};

/// Threads side by side in a row whose columns are summed: 128 bytes of it.
inline constexpr int kTileThreads = 8;

/// Gradients of embedded tokens, by their ids.
template <class T, class Out>
struct EmbeddingRows {
  const std::int32_t* ids = nullptr;    ///< [n], ascending
  const std::int64_t* order = nullptr;  ///< [n]: the row of each in `gradient`
  const T* gradient = nullptr;          ///< [n, width]
  Out* out = nullptr;                   ///< [V, width]
  std::int64_t count = 0;               ///< n
  std::int64_t width = 0;
};

}  // namespace sherd::ops::cuda
