#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace sherd::ops {

/// Causal attention with grouped queries: position t sees keys 0 … t, head n uses key head
/// n ÷ (N / K). Rows padded on the right need no mask: what comes after a position cannot change
/// it, and padded positions yield finite numbers that nothing may use.
/// Shapes: query [B, N, T, H], key and value [B, K, T, H] with K a divisor of N, any strides
/// -> [B, T, N × H].
/// `alibi_slopes` (fp32 [N], no gradient): −slope × (t − s) is added to the score of position t for
/// key s, in fp32 within the softmax pass.  Paper: ALiBi, arXiv:2108.12409.
/// Memory: scores of a block of queries at a time, computed again in backward; the inputs are kept.
/// A row's result does not depend on the other rows of the batch.
[[nodiscard]] at::Tensor attention(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value,
                                   const std::optional<at::Tensor>& alibi_slopes = std::nullopt);

/// One new query a row against cached keys, for decoding; not differentiable. Row b sees keys
/// 0 … positions[b].
/// Shapes: query [B, N, 1, H], key and value [B, K, S, H], positions int64 [B], each < S
/// -> [B, 1, N × H]. `alibi_slopes` as in attention(), t being positions[b].
[[nodiscard]] at::Tensor decode_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& positions, const std::optional<at::Tensor>& alibi_slopes = std::nullopt);

}  // namespace sherd::ops
