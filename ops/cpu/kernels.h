#pragma once
// Loops over rows that the operators run on CPUs. Each is compiled for several instruction sets and
// chosen at run time; all compute in fp32 and round once, when they store.
//
// Rows are worked on from `begin` to `end`, so that a caller can deal them out to threads.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "ops/cpu/isa.h"
#include "ops/rms_gain.h"

namespace sherd::ops::cpu {

/// Scores of queries against keys. Row r belongs to query `first_query` + r % `queries` of head
/// (r ÷ `queries`) % `heads`. Column c is of key `first_key` + c. A row sees the columns from
/// hidden() up to visible().
struct ScoreRows {
  int64_t columns = 0;      ///< keys that have a score
  int64_t queries = 0;      ///< of a block
  int64_t first_query = 0;  ///< of the block
  int64_t heads = 1;
  float scale = 1;                ///< what scores are multiplied by
  const float* slopes = nullptr;  ///< [heads]: ALiBi's, or null for none
  int64_t first_key = 0;
  int64_t window = 0;  ///< keys that a query sees; 0: all up to itself
  float soft_cap = 0;  ///< of scaled scores; 0: none

  [[nodiscard]] int64_t visible(int64_t row) const {
    return first_query + row % queries + 1 - first_key;
  }
  [[nodiscard]] int64_t hidden(int64_t row) const {
    return window == 0 ? 0 : std::max<int64_t>(visible(row) - window, 0);
  }
  [[nodiscard]] float slope(int64_t row) const {
    return slopes == nullptr ? 0.0F : slopes[row / queries % heads];
  }
};

/// One new query a head against cached keys. Row r is of text r ÷ `key_heads` and key head
/// r % `key_heads`, with all heads that share it; it sees keys 0 … positions[text], or the last
/// `window` of them.
template <class T>
struct DecodeRows {
  const T* query = nullptr;  ///< [texts, heads, head_size]
  const T* keys = nullptr;   ///< head_size apart from key to key
  const T* values = nullptr;
  const int64_t* positions = nullptr;  ///< [texts], each below `columns`
  const float* slopes = nullptr;       ///< [heads]: ALiBi's, or null for none
  int64_t columns = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_size = 0;
  int64_t text_stride = 0;      ///< of keys and of values, in elements
  int64_t key_head_stride = 0;  ///< as `text_stride`
  float scale = 1;
  int64_t window = 0;  ///< 0: all
  float soft_cap = 0;  ///< of scaled scores; 0: none
};

/// Vectors of heads, each dense: of token t and head h the one at t × token_stride + h ×
/// head_stride.
template <class T>
struct HeadVectors {
  const T* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  [[nodiscard]] const T* of(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

/// Causal attention within documents, in parts: part p is of document p ÷ `key_heads` and all heads
/// that share key head p % `key_heads`.
template <class T>
struct SmallHeads {
  HeadVectors<T> query;
  HeadVectors<T> key;
  HeadVectors<T> value;
  const int64_t* bounds = nullptr;  ///< where each document begins, and the last one ends
  const float* slopes = nullptr;    ///< [heads]: ALiBi's, or null for none
  int64_t most_tokens = 0;          ///< of a document
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_size = 0;
  float scale = 1;
  int64_t window = 0;  ///< keys that a query sees; 0: all up to itself
  float soft_cap = 0;  ///< of scaled scores; 0: none
};
/// Dense: [tokens, heads, head_size], with key heads in `key` and `value`.
template <class T>
struct SmallHeadGradients {
  T* query = nullptr;
  T* key = nullptr;
  T* value = nullptr;
};

/// Head vectors to be rotated, and their angles. Row r is of batch r ÷ (heads × tokens), head
/// r ÷ tokens % heads and token r % tokens; a stride is 0 where angles are shared.
template <class T>
struct RotaryRows {
  struct Strides {
    int64_t batch = 0, head = 0, token = 0;
    [[nodiscard]] int64_t of(int64_t b, int64_t n, int64_t t) const {
      return b * batch + n * head + t * token;
    }
  };
  const T* input = nullptr;
  const float* cosine = nullptr;  ///< [.., half]
  const float* sine = nullptr;
  Strides input_strides = {};
  Strides cosine_strides = {};
  Strides sine_strides = {};
  int64_t heads = 0;
  int64_t tokens = 0;
  int64_t half = 0;     ///< of a vector
  float direction = 1;  ///< 1 or −1
};

/// A product with a weight as linear() has it, all dense.
template <class T>
struct FewRows {
  const T* input = nullptr;   ///< [rows, inner]
  const T* weight = nullptr;  ///< [outputs, inner]
  const T* bias = nullptr;    ///< [outputs], or null for none
  int64_t rows = 0;
  int64_t inner = 0;
  int64_t outputs = 0;
};

/// A block of Q8_0 (ops/q8_0.h): its numbers and bytes.
inline constexpr int64_t kQ8Numbers = 32;
inline constexpr int64_t kQ8Bytes = 34;

/// What a norm is of: the input, or input + residual, which is then stored in `sum`.
template <class T>
struct NormTerms {
  const T* input = nullptr;
  const T* residual = nullptr;
  T* sum = nullptr;
};

/// The loops for tensors of one dtype T: float, c10::BFloat16 or c10::Half.
template <class T>
struct Kernels {
  /// scores [rows, columns] become softmax(cap(scale × score) − slope × distance) over the keys
  /// that are seen, and 0 elsewhere. log_sums [rows]: the log of each row's sum of exponentials.
  void (*causal_softmax)(const ScoreRows& rows, T* scores, float* log_sums, int64_t begin,
                         int64_t end);
  /// scores become probabilities again, and grad_probabilities [rows, columns] the gradient of the
  /// unscaled scores.
  void (*causal_softmax_backward)(const ScoreRows& rows, T* scores, T* grad_probabilities,
                                  const float* log_sums, int64_t begin, int64_t end);

  /// out [texts, heads, head_size] = softmax(cap(scale × query · keys) − slope × distance) ·
  /// values.
  void (*decode_attention)(const DecodeRows<T>& rows, T* out, int64_t begin, int64_t end);

  /// out [tokens, heads × head_size] of the parts `begin` to `end`. log_sums [tokens × heads]: the
  /// log of each query's sum of exponentials, a document's heads one behind the other.
  void (*small_heads)(const SmallHeads<T>& of, T* out, float* log_sums, int64_t begin, int64_t end);
  /// From grad_out, dense as `out` was.
  void (*small_heads_backward)(const SmallHeads<T>& of, const T* grad_out, const float* log_sums,
                               const SmallHeadGradients<T>& grads, int64_t begin, int64_t end);

  /// out [rows, outputs] = input · weightᵀ + bias, of the outputs from `begin` to `end`.
  void (*few_rows_product)(const FewRows<T>& of, T* out, int64_t begin, int64_t end);

  /// out [32 × count] = the numbers of `count` blocks of Q8_0, one behind the other.
  void (*dequantize)(const uint8_t* blocks, T* out, int64_t count);

  /// out = x ÷ rms with the weight applied as `gain` says; inverse_rms [rows]. x is the terms' sum.
  void (*rms_norm)(RmsGain gain, const NormTerms<T>& terms, const T* weight, float epsilon, T* out,
                   float* inverse_rms, int64_t width, int64_t begin, int64_t end);
  /// grad_x = what comes through the norm, + grad_sum where it is not null. Adds to grad_weight_sum
  /// [width] in fp32 where it is not null.
  void (*rms_norm_backward)(RmsGain gain, const T* grad_out, const T* grad_sum, const T* x,
                            const T* weight, const float* inverse_rms, T* grad_x,
                            float* grad_weight_sum, int64_t width, int64_t begin, int64_t end);

  /// out = (x − mean) ÷ deviation × weight + bias; statistics [rows × 2]: mean and 1 ÷ deviation.
  void (*layer_norm)(const NormTerms<T>& terms, const T* weight, const T* bias, float epsilon,
                     T* out, float* statistics, int64_t width, int64_t begin, int64_t end);
  /// As rms_norm_backward.
  void (*layer_norm_backward)(const T* grad_out, const T* grad_sum, const T* x, const T* weight,
                              const float* statistics, T* grad_x, float* grad_weight_sum,
                              float* grad_bias_sum, int64_t width, int64_t begin, int64_t end);

  /// out = silu(gate) × up, of `numel` elements.
  void (*swiglu)(const T* gate, const T* up, T* out, int64_t numel);
  void (*swiglu_backward)(const T* grad_out, const T* gate, const T* up, T* grad_gate, T* grad_up,
                          int64_t numel);

  /// The same with gelu in the form with tanh.
  void (*geglu)(const T* gate, const T* up, T* out, int64_t numel);
  void (*geglu_backward)(const T* grad_out, const T* gate, const T* up, T* grad_gate, T* grad_up,
                         int64_t numel);

  /// out = gelu(input + bias), in the form with tanh.
  void (*bias_gelu)(const T* input, const T* bias, T* out, int64_t width, int64_t begin,
                    int64_t end);
  /// Adds to grad_bias_sum [width] in fp32 where it is not null.
  void (*bias_gelu_backward)(const T* grad_out, const T* input, const T* bias, T* grad_input,
                             float* grad_bias_sum, int64_t width, int64_t begin, int64_t end);
  /// sum [width] += each row.
  void (*add_rows)(const T* rows, float* sum, int64_t width, int64_t begin, int64_t end);

  /// out [rows, 2 × half]: the pairs (i, i + half) of each vector rotated by its angles.
  void (*rotate)(const RotaryRows<T>& rows, T* out, int64_t begin, int64_t end);

  /// losses[r] = log Σ exp(logits) − logits[target]; log_sums [rows].
  void (*cross_entropy)(const T* logits, const int64_t* targets, int64_t columns, float* losses,
                        float* log_sums, int64_t begin, int64_t end);
  /// logits become (softmax − one-hot target) × scale.
  void (*cross_entropy_backward)(T* logits, const int64_t* targets, const float* log_sums,
                                 float scale, int64_t columns, int64_t begin, int64_t end);

  /// sum += values, in fp32.
  void (*add_to_floats)(const T* values, float* sum, int64_t numel);
  /// Widened, and rounded.
  void (*to_floats)(const T* values, float* out, int64_t numel);
  void (*from_floats)(const float* values, T* out, int64_t numel);
};

/// The loops of one instruction set.
struct KernelSet {
  std::string name;  ///< as LibTorch calls it: "AVX512", "AVX2", "DEFAULT"; also "AVX512_BF16"
  const Kernels<float>* floats;
  const Kernels<c10::BFloat16>* bfloats;
  const Kernels<c10::Half>* halves;

  template <class T>
  [[nodiscard]] const Kernels<T>& of() const;
};
template <>
inline const Kernels<float>& KernelSet::of<float>() const {
  return *floats;
}
template <>
inline const Kernels<c10::BFloat16>& KernelSet::of<c10::BFloat16>() const {
  return *bfloats;
}
template <>
inline const Kernels<c10::Half>& KernelSet::of<c10::Half>() const {
  return *halves;
}

/// Every set that a processor of this kind can run, the fastest first.
[[nodiscard]] std::vector<KernelSet> kernel_sets(Isa isa);

/// The loops to use for dtype T: the first of kernel_sets(isa()).
template <class T>
[[nodiscard]] const Kernels<T>& kernels();

}  // namespace sherd::ops::cpu
