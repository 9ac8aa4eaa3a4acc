#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "ops/low_rank.h"

namespace sherd::ops {

/// How many rows of logits are held at a time on a CPU. On a GPU, where each chunk reads the weight
/// three times and adds up its gradient in fp32, callers pass as many as they have memory for.
inline constexpr int64_t kLossChunkTokens = 512;

/// What a head's products become before the softmax: divided, then capped softly to (−cap, cap).
struct LogitMap {
  double divisor = 1;                        ///< > 0
  std::optional<double> cap = std::nullopt;  ///< cap × tanh(logit ÷ cap)
  [[nodiscard]] bool is_identity() const { return divisor == 1 && !cap; }
};

/// The logits [R, V] that a map makes of a head's products, in their dtype; differentiable.
[[nodiscard]] at::Tensor mapped(const at::Tensor& logits, const LogitMap& map);

/// The sum over rows of −log softmax(hidden · weightᵀ)[target]: a language model's head and loss in
/// one, so that the logits of all rows never exist together.
/// Shapes: hidden [R, D], weight [V, D] of the same dtype, targets int64 [R], each in [0, V)
/// -> scalar in fp32 (0 without rows; gradients are then zero).
/// Only rows that are supervised should be passed: the others have no gradient. Softmax and loss in
/// fp32. The logits of one chunk (`chunk_tokens` rows) are kept, and become their own gradient in
/// backward (a second backward through the same graph computes them again). Of several chunks the
/// gradients are computed in forward, chunk by chunk, and the weight's is summed in fp32. Since
/// that takes as much memory as the logits of (1 + 4 / element_size) D rows, up to that many rows
/// more than `chunk_tokens` are one chunk, where the weight has a gradient; where products of 16
/// bits are computed by blocks of fp32, those are counted too. Memory: logits of one chunk; of
/// several, also both gradients in fp32 until backward.
/// `map`: of the logits. `row_weights` (fp32 [R], no gradient): what each row's loss is multiplied
/// by. `update`: added to the head's product. Throws c10::Error for a target outside [0, V).
/// PyTorch: `cross_entropy(linear(hidden, weight), targets, reduction="sum")`.
[[nodiscard]] at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                              const at::Tensor& targets,
                                              int64_t chunk_tokens = kLossChunkTokens,
                                              const LogitMap& map = {},
                                              const at::Tensor& row_weights = {},
                                              const LowRank& update = {});

/// The same loss of each row, -log softmax(hidden · weightᵀ)[target], without gradients.
/// Shapes: as linear_cross_entropy() -> fp32 or wider [R]. `update`: added to the head's product.
/// Memory: logits of one chunk. Throws c10::Error for a target outside [0, V). PyTorch:
/// `cross_entropy(…, reduction="none")` under `no_grad`.
[[nodiscard]] at::Tensor linear_cross_entropy_of_rows(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    int64_t chunk_tokens = kLossChunkTokens, const LogitMap& map = {}, const LowRank& update = {});

}  // namespace sherd::ops
