#pragma once
// The BLOOM family. Names of modules and parameters are those transformers saves.
// Paper: arXiv:2211.05100.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "llm/model/alibi.h"
#include "llm/model/causal_lm.h"
#include "llm/model/kv_cache.h"
#include "llm/model/parts.h"
#include "sherd/unit.h"

// Shapes: B batch, T tokens, D model width, N heads, H = D / N head size, V vocabulary. The
// feed-forward part is 4 × D wide.

namespace llm::model {

/// The shape of a BLOOM model; fields as in its config.json, in the spelling of transformers 4 and
/// 5.
struct BloomConfig {
  int64_t hidden_size = 0;  ///< D
  int64_t n_layer = 0;      ///< ≥ 1
  int64_t n_head = 0;       ///< N, a divisor of D, not only a power of two
  int64_t vocab_size = 0;   ///< V
  /// The longest text. ALiBi sets no limit; this is the length the model was trained with.
  int64_t seq_length = 2'048;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;  ///< standard deviation of weights that are not loaded
  bool tie_word_embeddings = true;
  /// Adds to attention and feed-forward their normalised inputs, not the inputs themselves.
  bool apply_residual_connection_post_layernorm = false;
};

/// Causal self-attention with ALiBi. Rows of the fused projection lie head by head: q, k, v of head
/// 0, q, k, v of head 1, …
class BloomAttentionImpl : public torch::nn::Module {
 public:
  explicit BloomAttentionImpl(const BloomConfig& config);
  /// [B, T, D] -> [B, T, D]. `cache` is null unless decoding; `layer` is this layer's place in it.
  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_BTD, const Alibi& alibi,
                                   KvCache* cache, int64_t layer) const;

 private:
  int64_t heads_;
  BiasedProjection query_key_value_;
  BiasedProjection dense_;
};
TORCH_MODULE(BloomAttention);

/// The feed-forward part: down(gelu(up(x))) with the tanh form of GELU.
class BloomMlpImpl : public torch::nn::Module {
 public:
  explicit BloomMlpImpl(const BloomConfig& config);
  /// [B, T, D] -> [B, T, D]
  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_BTD) const;

 private:
  BiasedProjection dense_h_to_4h_;
  BiasedProjection dense_4h_to_h_;
};
TORCH_MODULE(BloomMlp);

/// One decoder layer: attention and feed-forward, each on its normalised input and added to it.
class BloomBlockImpl : public torch::nn::Module {
 public:
  explicit BloomBlockImpl(const BloomConfig& config);
  /// [B, T, D] -> [B, T, D]; arguments as BloomAttention's.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input_BTD, const Alibi& alibi, KvCache* cache,
                                   int64_t layer);

 private:
  bool residual_is_normalised_;
  LayerNorm input_layernorm_;
  BloomAttention self_attention_;
  LayerNorm post_attention_layernorm_;
  BloomMlp mlp_;
};
TORCH_MODULE(BloomBlock);

/// Embedding and its norm, blocks (each a unit) and final norm: what checkpoints call
/// `transformer`.
class BloomDecoderImpl : public torch::nn::Module {
 public:
  explicit BloomDecoderImpl(const BloomConfig& config);
  /// ids [B, T] -> [B, T, D], before the final norm.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input_ids_BT, const Alibi& alibi,
                                   KvCache* cache);

  TokenEmbedding word_embeddings;
  LayerNorm word_embeddings_layernorm;
  std::vector<sherd::Unit<BloomBlock>> h;
  LayerNorm ln_f;
};
TORCH_MODULE(BloomDecoder);

/// A BLOOM language model. Built with random weights; under sherd::on_meta() with none.
class BloomImpl : public CausalLmImpl {
 public:
  explicit BloomImpl(const BloomConfig& config);

  [[nodiscard]] int64_t context_length() const override { return config_.seq_length; }
  [[nodiscard]] int64_t vocab_rows() const override { return config_.vocab_size; }
  [[nodiscard]] int64_t hidden_size() const override { return config_.hidden_size; }
  [[nodiscard]] AttentionShape attention_shape() const override {
    return {config_.n_layer, config_.n_head, config_.hidden_size / config_.n_head};
  }
  [[nodiscard]] std::string family() const override { return "bloom"; }
  [[nodiscard]] std::string embedding_name() const override {
    return "transformer.word_embeddings.weight";
  }
  [[nodiscard]] const BloomConfig& config() const noexcept { return config_; }

 protected:
  [[nodiscard]] at::Tensor hidden_states(const at::Tensor& input_ids_BT, KvCache* cache) override;
  [[nodiscard]] at::Tensor final_norm(const at::Tensor& hidden) override;
  [[nodiscard]] const at::Tensor& head_weight() const override;

 private:
  BloomConfig config_;
  BloomDecoder decoder_;
  Projection head_{nullptr};  // none where the embedding serves as the head
};
TORCH_MODULE(Bloom);

}  // namespace llm::model
