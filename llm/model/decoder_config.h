#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "llm/model/rope.h"
#include "ops/attention_scores.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_gain.h"

namespace llm::model {

/// Which norm the heads of queries and keys have before they are rotated.
enum class HeadNorm {
  None,
  PerHead,  ///< RMSNorm over each head's H, one weight for all heads
  Whole,    ///< RMSNorm over all heads together: N × H of queries, K × H of keys
};

/// Where a layer has norms.
enum class NormPlacement {
  Before,  ///< before attention and before the feed-forward part
  After,   ///< of their outputs, before these are added
  Around,  ///< both
};

/// The shape of a decoder, whatever its family.
struct DecoderConfig {
  int64_t hidden_size = 0;        ///< D, the model's width
  int64_t feed_forward_size = 0;  ///< F
  int64_t layers = 0;             ///< ≥ 1
  int64_t heads = 0;              ///< N, of queries
  int64_t key_heads = 0;          ///< K, a divisor of N
  int64_t head_size = 0;          ///< H; even where positions are rotary
  int64_t vocab_size = 0;         ///< V, rows of the head: ids are below this
  int64_t context_length = 0;     ///< the longest text the model was made for, in tokens
  double norm_epsilon = 0;
  double initializer_range = 0.02;  ///< standard deviation of weights that are not loaded
  bool tied_embedding = false;      ///< the embedding is the head too
  /// Rotary positions; without them and learned ones, attention is biased by ALiBi.
  std::optional<RopeConfig> rope = std::nullopt;
  std::optional<RopeConfig> window_rope = std::nullopt;  ///< of layers with a window; unset: `rope`
  std::set<int64_t> layers_without_rope = {};            ///< of a model with rotary positions
  bool query_key_value_bias = false;  ///< biases of the projections of q, k and v
  HeadNorm head_norm = HeadNorm::None;
  NormPlacement norm_placement = NormPlacement::Before;
  sherd::ops::RmsGain norm_gain = sherd::ops::RmsGain::Rounded;
  bool fused_projections = false;  ///< q, k and v are one parameter, gate and up another
  bool gelu_gate = false;          ///< the gate of the feed-forward part is GELU and not SiLU
  double score_scale = 0;  ///< what products of queries and keys are multiplied by; 0: 1 ÷ √H
  double score_cap = 0;    ///< c: scores become c × tanh(score ÷ c); 0: none
  int64_t window = 0;      ///< tokens that a query sees in `layers_with_window`
  std::set<int64_t> layers_with_window = {};
  double embedding_scale = 1;           ///< what token vectors are multiplied by
  bool rounds_embedding_scale = false;  ///< to the dtype of the vectors first
  double residual_scale = 1;  ///< what the parts' outputs are multiplied by before they are added
  sherd::ops::LogitMap logits = {};  ///< what becomes of the head's products
  bool learned_positions = false;    ///< a table of `context_length` vectors is added to tokens
  /// Adds to attention and feed-forward their normalised inputs, not the inputs themselves.
  bool residual_is_normalised = false;

  /// What attention of a layer computes its scores by.
  [[nodiscard]] sherd::ops::AttentionScores scores_of(int64_t layer) const {
    return {score_scale, layers_with_window.contains(layer) ? window : 0, score_cap};
  }
  /// The pairs of a query and a key that it sees in a text of `tokens`, on average over the layers.
  [[nodiscard]] double seen_pairs(int64_t tokens) const {
    const auto windowed = static_cast<int64_t>(layers_with_window.size());
    const int64_t of_layers = (layers - windowed) * sherd::ops::seen_pairs(tokens, 0) +
                              windowed * sherd::ops::seen_pairs(tokens, window);
    return static_cast<double>(of_layers) / static_cast<double>(layers);
  }
};

}  // namespace llm::model
