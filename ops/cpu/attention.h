#pragma once
// Causal attention on CPUs: batched matrix products over blocks of queries, and vectorised loops
// between them.  Idea: FlashAttention, arXiv:2205.14135, whose statistics a row are kept.

#include <ATen/core/Tensor.h>

namespace sherd::ops::cpu {

// Shapes: B batch, N heads, K key heads, T tokens, H head size.

struct AttentionOutput {
  at::Tensor mixed_BTN;     ///< [B, T, N × H]
  at::Tensor log_sums_BNT;  ///< fp32 [B, N, T]: of each query's exponentials
};

/// As ops::attention(), for tensors that serves() accepts.
[[nodiscard]] AttentionOutput attention_forward(const at::Tensor& query, const at::Tensor& key,
                                                const at::Tensor& value, const at::Tensor& slopes);

struct AttentionGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

/// The gradients of the inputs, in their shapes; scores are computed again.
[[nodiscard]] AttentionGradients attention_backward(const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value,
                                                    const at::Tensor& slopes,
                                                    const at::Tensor& log_sums_BNT,
                                                    const at::Tensor& grad_mixed_BTN);

}  // namespace sherd::ops::cpu
