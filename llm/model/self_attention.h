#pragma once
// The parts of a layer that most families share: attention with rotary positions and grouped
// queries, and a gated feed-forward part. Names of parameters are those of Hugging Face's Llama.

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "llm/model/decoder.h"
#include "llm/model/decoder_config.h"
#include "llm/model/parts.h"

// Shapes: T tokens, D model width, F feed-forward width, N heads, K key heads, H head size.

namespace llm::model {

/// Self-attention: q_proj, k_proj and v_proj, with or without biases; norms of each head, q_norm
/// and k_norm; rotary positions, but not in every layer; scores of the layer's scale, window and
/// cap; o_proj.
class RotaryAttention : public AttentionImpl {
 public:
  RotaryAttention(const DecoderConfig& config, int64_t layer);
  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD,
                                   const Context& context) const override;

 private:
  int64_t layer_;
  int64_t head_size_;
  bool is_rotary_;
  sherd::ops::AttentionScores scores_;
  Projection q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  std::shared_ptr<RmsNormImpl> q_norm_, k_norm_;  // null: none
};

/// down(silu(gate(x)) × up(x)): gate_proj, up_proj and down_proj, without biases.
class GatedMlp : public FeedForwardImpl {
 public:
  explicit GatedMlp(const DecoderConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD) const override;

 private:
  Projection gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};

}  // namespace llm::model
