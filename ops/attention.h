#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "ops/attention_kernel.h"
#include "ops/attention_scores.h"
#include "ops/documents.h"

namespace sherd::ops {

/// Causal attention with grouped queries within documents: the token at position t of a document
/// sees those at 0 … t of the same document, head n uses key head n ÷ (N / K). No mask is made, and
/// no score between documents is computed.
/// Shapes: query [T, N, H], key and value [T, K, H] with K a divisor of N, any strides, T the
/// documents' tokens -> [T, N × H].
/// `alibi_slopes` (fp32 [N], no gradient): −slope × (t − s) is added to the score of position t for
/// key s, in fp32 within the softmax pass.  Paper: ALiBi, arXiv:2108.12409.
/// `scores`: the scale, a window and a soft cap. Scores outside the window are not computed but for
/// those of a block's edge. A window ends where its document begins.
/// Memory: scores of a block of queries at a time, computed again in backward; the inputs are kept.
/// A document's result does not depend on the others. Neighbours of equal length share products.
/// `kernel`: on a GPU, what computes it; where the named one does not serve the shape, the next one
/// does. Activation checkpointing computes with the same kernel again.
/// Throws c10::Error where the documents do not cover the tokens, where a number of `scores` is
/// negative, and for a soft cap together with slopes.
[[nodiscard]] at::Tensor attention(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const Documents& documents,
                                   const std::optional<at::Tensor>& alibi_slopes = std::nullopt,
                                   AttentionKernel kernel = AttentionKernel::Auto,
                                   const AttentionScores& scores = {});

/// One new query a row against cached keys, for decoding; not differentiable. Row b sees keys
/// 0 … positions[b], or the last of them that its window holds: on a CPU no others are read.
/// Shapes: query [B, N, H], key and value [B, K, S, H], positions int64 [B], each < S
/// -> [B, N × H]. `alibi_slopes` and `scores` as in attention(), t being positions[b].
[[nodiscard]] at::Tensor decode_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& positions, const std::optional<at::Tensor>& alibi_slopes = std::nullopt,
    const AttentionScores& scores = {});

}  // namespace sherd::ops
