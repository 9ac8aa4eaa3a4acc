#pragma once
// Causal attention as batched matrix products over blocks of queries, with a softmax between them
// that the back end provides.  Idea: FlashAttention, arXiv:2205.14135, whose statistics a row are
// kept.

#include <limits>

#include "ops/backend.h"

namespace sherd::ops {

inline constexpr double kMasked = -std::numeric_limits<double>::infinity();

/// What scores are multiplied by: `scores.scale`, or 1 ÷ √H of a query [.., H].
[[nodiscard]] double scale_of(const at::Tensor& query, const AttentionScores& scores);
[[nodiscard]] inline double scale_of(const AttentionInputs& inputs) {
  return scale_of(inputs.query, inputs.scores);
}

/// Which scores a block [.., S] has. Row r is of query `first_query` + r % `queries` of head
/// (r ÷ `queries`) % `heads`, and sees the keys up to that query that its window holds. Column s is
/// of key `first_key` + s.
struct ScoreBlock {
  int64_t first_query = 0;
  int64_t queries = 0;
  int64_t heads = 1;
  double scale = 1;   ///< what scores are multiplied by
  at::Tensor slopes;  ///< [heads] in fp32: ALiBi's; undefined for none
  int64_t first_key = 0;
  AttentionScores scores = {};  ///< the window and the cap
};

struct AttentionSteps {
  /// out = a · b of batches of matrices: [M, m, k] · [M, k, n].
  void (*bmm)(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
  /// Scores [M, rows, S] become softmax(cap(scale × score) − slope × distance) over the keys that
  /// are seen, and 0 elsewhere. log_sums [M × rows]: the log of each row's sum of exponentials.
  void (*softmax)(at::Tensor& scores, at::Tensor& log_sums, const ScoreBlock& block);
  /// Scores become probabilities again, and their gradient that of the unscaled scores.
  void (*softmax_backward)(at::Tensor& scores, at::Tensor& grad_probabilities,
                           const at::Tensor& log_sums, const ScoreBlock& block);
};

/// Backend::attention with those steps. Memory: scores of 128 queries of the documents that are
/// computed together, neighbours of equal length.
[[nodiscard]] AttentionOutput blockwise_attention(const AttentionSteps& steps,
                                                  const AttentionInputs& inputs);
/// Backend::attention_backward with those steps. Gradients of keys and values are summed over
/// blocks in fp32 or wider.
[[nodiscard]] AttentionGradients blockwise_attention_backward(const AttentionSteps& steps,
                                                              const AttentionInputs& inputs,
                                                              const at::Tensor& log_sums,
                                                              const at::Tensor& grad_mixed_TD);

/// Backend::decode_attention in LibTorch's own operators.
[[nodiscard]] at::Tensor attention_of_one_query(const at::Tensor& query, const at::Tensor& key,
                                                const at::Tensor& value,
                                                const at::Tensor& positions,
                                                const at::Tensor& slopes,
                                                const AttentionScores& scores);

}  // namespace sherd::ops
