#pragma once
// What an operator's autograd function computes with: tensor-level functions, one table for each
// back end, chosen once per device and dtype.

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/attention_kernel.h"
#include "ops/attention_scores.h"
#include "ops/documents.h"
#include "ops/dropout_mask.h"
#include "ops/plain_use.h"
#include "ops/rms_gain.h"

namespace sherd::ops {

/// Shapes: N heads, K key heads, T tokens, H head size.
struct AttentionInputs {
  at::Tensor query;  ///< [T, N, H]
  at::Tensor key;    ///< [T, K, H]
  at::Tensor value;  ///< as `key`
  Documents documents;
  at::Tensor slopes;                               ///< ALiBi's, fp32 [N]; undefined for none
  AttentionKernel kernel = AttentionKernel::Auto;  ///< the one that the caller names
  AttentionScores scores = {};                     ///< no cap where there are slopes
};
struct AttentionOutput {
  at::Tensor mixed_TD;  ///< [T, N × H]
  at::Tensor log_sums;  ///< T × N in fp32 or wider: of each query's exponentials, in any order
  /// What computed it; attention_backward of any but Plain reads mixed_TD too.
  AttentionKernel kernel = AttentionKernel::Plain;
};
struct AttentionGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

/// What a norm is of: the input, or input + residual.
struct NormInputs {
  at::Tensor input;
  at::Tensor residual;  ///< undefined without one
};
/// Of LayerNorm with its bias, of RMSNorm without one.
struct NormParameters {
  at::Tensor weight;
  at::Tensor bias;
  double epsilon = 0;
  RmsGain gain = RmsGain::Rounded;  ///< of RMSNorm
  [[nodiscard]] bool is_layer_norm() const { return bias.defined(); }
};
struct NormOutput {
  at::Tensor sum;  ///< what was normalised
  at::Tensor normalised;
  at::Tensor statistics;  ///< of each row, as the back end's norm_backward reads them
};
/// What comes back: through the norm, and through the sum where it was handed out and used.
struct NormGradients {
  at::Tensor normalised;
  at::Tensor sum;  ///< undefined for none
};
struct WantedGradients {
  bool weight = false;
  bool bias = false;
};
struct NormInputGradients {
  at::Tensor sum;     ///< of what was normalised
  at::Tensor weight;  ///< [D] in fp32 or wider; undefined where not wanted
  at::Tensor bias;    ///< as `weight`
};

/// Of SwiGLU and GeGLU.
struct SwiGluGradients {
  at::Tensor gate;
  at::Tensor up;
};
struct BiasGeluGradients {
  at::Tensor input;
  at::Tensor bias;  ///< [F] in fp32 or wider; undefined where not wanted
};

struct CrossEntropy {
  at::Tensor loss_sum;    ///< scalar in fp32 or wider
  at::Tensor log_sums_R;  ///< the same dtype: of each row's exponentials
};

/// The functions of one back end. Tensors are on one device; floating-point ones have one dtype,
/// except where another is named. Matrices that are multiplied have any strides, outputs are
/// allocated by the caller.
struct Backend {
  const char* name;

  /// out [m, n] = a [m, k] · b [k, n]. An `out` in fp32 takes products of 16 bits unrounded.
  void (*mm)(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
  /// The most bytes that mm() of those sizes and dtypes (`out`, `a` and `b`) takes beside its
  /// output.
  int64_t (*mm_room_bytes)(c10::ScalarType out, c10::ScalarType in, int64_t m, int64_t k,
                           int64_t n);
  /// out = a · b + bias [n], rounded once.
  void (*addmm)(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b);
  /// out [m, n] += a [m, k] · b [k, n], the sum rounded once.
  void (*add_mm)(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
  /// The most rows that few_rows_product() takes; 0 where the back end has none.
  int64_t (*few_rows)();
  /// out [m, n] = input [m, k] · weight [n, k]ᵀ + bias [n] (undefined for none), all contiguous.
  void (*few_rows_product)(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias);
  /// mm() where the vocabulary V is far above the width D: logits [R, V] = hidden [R, D] · weight
  /// [V, D]ᵀ, and grad_hidden [R, D] = grad_logits [R, V] · weight.
  void (*head_logits)(at::Tensor& logits, const at::Tensor& hidden, const at::Tensor& weight);
  void (*head_input_gradient)(at::Tensor& grad_hidden, const at::Tensor& grad_logits,
                              const at::Tensor& weight);
  /// out [rows, columns], dense, = the numbers of `blocks`, uint8 [rows, bytes] of Q8_0
  /// (ops/q8_0.h) with dense rows, each rounded once.
  void (*dequantize)(at::Tensor& out, const at::Tensor& blocks);
  /// The most numbers that a product with a quantized weight dequantizes at a time, as a rule.
  int64_t dequantized_numbers;
  /// [columns] in fp32 or wider, of a matrix.
  at::Tensor (*column_sums)(const at::Tensor& matrix);
  /// sum (fp32 or wider) += part, both contiguous.
  void (*add_to_sum)(at::Tensor& sum, const at::Tensor& part);
  /// The rows of `out` [V, D] that ids [n] name += gradient [n, D], summed in fp32 or wider.
  void (*add_embedding_gradient)(at::Tensor& out, const at::Tensor& ids,
                                 const at::Tensor& gradient);

  /// ops::dropout() of a matrix, with a probability above 0: contiguous.
  at::Tensor (*dropped)(const at::Tensor& matrix, const Dropout& dropout);

  /// ops::attention().
  AttentionOutput (*attention)(const AttentionInputs& inputs);
  /// Computes the scores again. `output`: as forward left it, mixed_TD undefined for Plain.
  AttentionGradients (*attention_backward)(const AttentionInputs& inputs,
                                           const AttentionOutput& output,
                                           const at::Tensor& grad_mixed_TD);
  /// ops::attention_choices().
  std::vector<AttentionChoice> (*attention_choices)();
  /// ops::decode_attention(); slopes undefined without ALiBi.
  at::Tensor (*decode_attention)(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const at::Tensor& positions,
                                 const at::Tensor& slopes, const AttentionScores& scores);

  NormOutput (*norm)(const NormInputs& inputs, const NormParameters& parameters);
  NormInputGradients (*norm_backward)(const NormGradients& gradients, const at::Tensor& sum,
                                      const NormParameters& parameters,
                                      const at::Tensor& statistics, WantedGradients wanted);

  /// silu(gate) × up, contiguous. Of any strides, as in backward; gradients that columns of one
  /// matrix have may be columns of one themselves.
  at::Tensor (*swiglu)(const at::Tensor& gate, const at::Tensor& up);
  SwiGluGradients (*swiglu_backward)(const at::Tensor& grad_output, const at::Tensor& gate,
                                     const at::Tensor& up);
  /// swiglu_backward(), and `grad_output`, contiguous, becomes what swiglu() returned: fewer passes
  /// than the two have. Null where the back end has no such kernel.
  SwiGluGradients (*swiglu_backward_with_product)(at::Tensor& grad_output, const at::Tensor& gate,
                                                  const at::Tensor& up);
  /// The same with gelu in its tanh form in the place of silu.
  at::Tensor (*geglu)(const at::Tensor& gate, const at::Tensor& up);
  SwiGluGradients (*geglu_backward)(const at::Tensor& grad_output, const at::Tensor& gate,
                                    const at::Tensor& up);
  SwiGluGradients (*geglu_backward_with_product)(at::Tensor& grad_output, const at::Tensor& gate,
                                                 const at::Tensor& up);
  /// gelu(input + bias) in its tanh form; the input contiguous.
  at::Tensor (*bias_gelu)(const at::Tensor& input, const at::Tensor& bias);
  BiasGeluGradients (*bias_gelu_backward)(const at::Tensor& grad_output, const at::Tensor& input,
                                          const at::Tensor& bias, bool wants_bias);
  /// ops::rotary() forwards with direction 1, back with −1.
  at::Tensor (*rotary)(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine,
                       int direction);

  /// Of logits [R, V], contiguous, and targets int64 [R]. Throws c10::Error for a target outside
  /// [0, V); on a GPU, which is not waited for, the loss is NaN then.
  CrossEntropy (*cross_entropy)(const at::Tensor& logits, const at::Tensor& targets);
  /// Turns the logits into their gradient, (softmax − one-hot target) × scale (in the losses'
  /// dtype: a scalar, or [R], one per row).
  void (*cross_entropy_backward)(at::Tensor& logits, const at::Tensor& targets,
                                 const at::Tensor& log_sums, const at::Tensor& scale);

  /// Whether one product over weights that lie side by side is to take the place of several. It
  /// rounds otherwise: a gradient of the input is rounded once, not once a weight.
  bool joins_products;
  /// ops::plain_uses(); null where nothing is left to the plain back end.
  std::vector<PlainUse> (*plain_uses)();
};

/// The back end that serves tensors of this device and dtype; the plain one while PlainOperators
/// lives on this thread, and another one while WithBackend does.
[[nodiscard]] const Backend& backend_of(const at::Tensor& tensor);

/// backend_of(`tensor`), kept for backward().
const Backend& choose_backend(torch::autograd::AutogradContext& context, const at::Tensor& tensor);
/// What forward chose.
[[nodiscard]] const Backend& chosen_backend(const torch::autograd::AutogradContext& context);

}  // namespace sherd::ops
