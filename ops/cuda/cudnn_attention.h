#pragma once
// Attention of documents of one length by cuDNN, through LibTorch: grouped heads are not repeated,
// and scores take no memory. Documents of different lengths are not given to cuDNN: LibTorch 2.11's
// backward of `_cudnn_attention_forward` passes the head size as the longest length, and cuDNN then
// writes outside its workspace (pytorch pull request 186142).

#include <string>

#include "ops/backend.h"

namespace sherd::ops::cuda {

/// Why it does not compute these; empty if it does. It computes bf16 and fp16, heads of up to 128
/// in whole packs, documents of one length of at least 2 tokens, on compute capability 8.0 and
/// above, and nothing while LibTorch is told to use deterministic algorithms.
[[nodiscard]] std::string why_not_cudnn_attention(const AttentionInputs& inputs);

/// Backend::attention; its backward reads what it returns. cuDNN builds a plan for each combination
/// of count and length of documents and for each thread, which takes time.
/// Throws c10::Error if cuDNN has no plan. Do not call it again with the same shape then: LibTorch
/// keeps an empty plan.
[[nodiscard]] AttentionOutput cudnn_attention(const AttentionInputs& inputs);
/// Backend::attention_backward. LibTorch does not call it deterministic.
[[nodiscard]] AttentionGradients cudnn_attention_backward(const AttentionInputs& inputs,
                                                          const AttentionOutput& output,
                                                          const at::Tensor& grad_mixed_TD);

}  // namespace sherd::ops::cuda
