#pragma once
// The Llama family (1 to 3.x). Names of modules and parameters are those of Hugging Face's
// checkpoints.  Paper: arXiv:2302.13971.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "llm/model/causal_lm.h"
#include "llm/model/kv_cache.h"
#include "llm/model/parts.h"
#include "llm/model/rope.h"
#include "ops/rotary.h"
#include "sherd/unit.h"

// Shapes: B batch, T tokens, D model width, F feed-forward width, N heads, K key heads, H head
// size, V vocabulary.

namespace llm::model {

/// The shape of a Llama model; fields as in its config.json.
struct LlamaConfig {
  int64_t hidden_size = 0;          ///< D
  int64_t intermediate_size = 0;    ///< F
  int64_t num_hidden_layers = 0;    ///< ≥ 1
  int64_t num_attention_heads = 0;  ///< N
  int64_t num_key_value_heads = 0;  ///< K, a divisor of N
  int64_t head_dim = 0;             ///< H, even
  int64_t vocab_size = 0;           ///< V
  int64_t max_position_embeddings = 2'048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;  ///< standard deviation of weights that are not loaded
  bool tie_word_embeddings = false;
  RopeConfig rope = {};
};

/// Causal self-attention with rotary positions and grouped queries.
class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  /// [B, T, D] -> [B, T, D]. `cache` is null unless decoding; `layer` is this layer's place in it.
  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_BTD,
                                   const sherd::ops::RotaryTables& rotary, KvCache* cache,
                                   int64_t layer) const;

 private:
  int64_t head_size_;
  // Side by side in registration order, so that one product can serve them.
  Projection q_proj_;
  Projection k_proj_;
  Projection v_proj_;
  Projection o_proj_;
};
TORCH_MODULE(LlamaAttention);

/// The feed-forward part: down(silu(gate(x)) × up(x)).
class LlamaMlpImpl : public torch::nn::Module {
 public:
  explicit LlamaMlpImpl(const LlamaConfig& config);
  /// [B, T, D] -> [B, T, D]
  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_BTD) const;

 private:
  Projection gate_proj_;
  Projection up_proj_;
  Projection down_proj_;
};
TORCH_MODULE(LlamaMlp);

/// One decoder layer: attention and feed-forward, each on its normalised input and added to it.
class LlamaDecoderLayerImpl : public torch::nn::Module {
 public:
  explicit LlamaDecoderLayerImpl(const LlamaConfig& config);
  /// [B, T, D] -> [B, T, D]; arguments as LlamaAttention's.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input_BTD,
                                   const sherd::ops::RotaryTables& rotary, KvCache* cache,
                                   int64_t layer);

 private:
  LlamaAttention self_attn_;
  LlamaMlp mlp_;
  RmsNorm input_layernorm_;
  RmsNorm post_attention_layernorm_;
};
TORCH_MODULE(LlamaDecoderLayer);

/// Embedding, decoder layers (each a unit) and final norm: what checkpoints call `model`.
class LlamaDecoderImpl : public torch::nn::Module {
 public:
  explicit LlamaDecoderImpl(const LlamaConfig& config);
  /// ids [B, T] -> [B, T, D], before the final norm.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input_ids_BT,
                                   const sherd::ops::RotaryTables& rotary, KvCache* cache);

  TokenEmbedding embed_tokens;
  std::vector<sherd::Unit<LlamaDecoderLayer>> layers;
  RmsNorm norm;
};
TORCH_MODULE(LlamaDecoder);

/// A Llama language model. Built with random weights; under sherd::on_meta() with none.
class LlamaImpl : public CausalLmImpl {
 public:
  explicit LlamaImpl(const LlamaConfig& config);

  [[nodiscard]] int64_t context_length() const override { return config_.max_position_embeddings; }
  [[nodiscard]] int64_t vocab_rows() const override { return config_.vocab_size; }
  [[nodiscard]] int64_t hidden_size() const override { return config_.hidden_size; }
  [[nodiscard]] AttentionShape attention_shape() const override {
    return {config_.num_hidden_layers, config_.num_attention_heads, config_.head_dim};
  }
  [[nodiscard]] std::string family() const override { return "llama"; }
  [[nodiscard]] std::string embedding_name() const override { return "model.embed_tokens.weight"; }
  [[nodiscard]] const LlamaConfig& config() const noexcept { return config_; }

 protected:
  [[nodiscard]] at::Tensor hidden_states(const at::Tensor& input_ids_BT, KvCache* cache) override;
  [[nodiscard]] at::Tensor final_norm(const at::Tensor& hidden) override;
  [[nodiscard]] const at::Tensor& head_weight() const override;

 private:
  LlamaConfig config_;
  RopeCache rope_;
  LlamaDecoder decoder_;
  Projection head_{nullptr};  // none where the embedding serves as the head
};
TORCH_MODULE(Llama);

}  // namespace llm::model
