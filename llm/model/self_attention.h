#pragma once
// The parts of a layer that most families share: attention with rotary positions and grouped
// queries, and a gated feed-forward part. Names of parameters are those of Hugging Face's Llama.

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "llm/model/decoder.h"
#include "llm/model/decoder_config.h"
#include "llm/model/parts.h"

// Shapes: T tokens, D model width, F feed-forward width, N heads, K key heads, H head size.

namespace llm::model {

/// Self-attention: q_proj, k_proj and v_proj, with or without biases, or one qkv_proj; norms of
/// each head or of all, q_norm and k_norm; rotary positions, but not in every layer; scores of the
/// layer's scale, window and cap; o_proj.
class RotaryAttention : public AttentionImpl {
 public:
  RotaryAttention(const DecoderConfig& config, int64_t layer);
  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD,
                                   const Context& context) const override;

 private:
  void add_projections(const DecoderConfig& config);
  void add_norms(const DecoderConfig& config);
  // Queries, keys and values -> [T, N × H], [T, K × H], [T, K × H]
  [[nodiscard]] std::vector<at::Tensor> project(const at::Tensor& normalised_TD,
                                                const Context& context) const;
  // Of queries or of keys -> [T, N, H]
  [[nodiscard]] at::Tensor finished_heads(const at::Tensor& packed,
                                          const std::shared_ptr<RmsNormImpl>& norm,
                                          const Context& context) const;

  int64_t layer_;
  int64_t head_size_;
  bool is_rotary_;
  bool has_window_rope_;
  sherd::ops::AttentionScores scores_;
  HeadNorm head_norm_;
  std::vector<int64_t> widths_;   // of queries, keys and values
  Projection qkv_proj_{nullptr};  // null where the three are apart
  Projection q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  std::shared_ptr<RmsNormImpl> q_norm_, k_norm_;  // null: none
};

/// down(act(gate(x)) × up(x)), act being SiLU or GELU in its tanh form: gate_proj and up_proj, or
/// one gate_up_proj; down_proj. Without biases.
class GatedMlp : public FeedForwardImpl {
 public:
  explicit GatedMlp(const DecoderConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD,
                                   const Context& context) const override;

 private:
  bool is_gelu_;
  int64_t inner_;                     // feed-forward width
  Projection gate_up_proj_{nullptr};  // null where the two are apart
  Projection gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};

}  // namespace llm::model
