#pragma once
// Attention of documents by LibTorch's flash attention for sequences of varying length, which reads
// grouped heads as they are and takes no memory for scores. It knows no bias: for ALiBi, heads are
// copied and grow by columns that hold it (alibi.h), in forward and again in backward.

#include <string>

#include "ops/backend.h"

namespace sherd::ops::cuda {

/// Why it does not compute these; empty if it does. It computes bf16 and fp16, heads of up to 256
/// in whole packs, documents of which one has at least 2 tokens, on compute capability 8.0 and
/// above; with ALiBi heads of up to 248 and documents of up to 32768 tokens.
[[nodiscard]] std::string why_not_flash_attention(const AttentionInputs& inputs);

/// Backend::attention; its backward reads what it returns.
[[nodiscard]] AttentionOutput flash_attention(const AttentionInputs& inputs);
/// Backend::attention_backward. The gradient of queries is summed in an order that differs from run
/// to run, unless LibTorch is told to use deterministic algorithms.
[[nodiscard]] AttentionGradients flash_attention_backward(const AttentionInputs& inputs,
                                                          const AttentionOutput& output,
                                                          const at::Tensor& grad_mixed_TD);

}  // namespace sherd::ops::cuda
