#include "llm/model/bloom.h"

#include <memory>

#include <ATen/TensorOperators.h>

#include "ops/attention.h"
#include "ops/bias_gelu.h"
#include "ops/linear.h"

namespace llm::model {

BloomAttentionImpl::BloomAttentionImpl(const BloomConfig& config)
    : heads_(config.n_head),
      query_key_value_(register_module(
          "query_key_value",
          BiasedProjection(config.hidden_size, 3 * config.hidden_size, config.initializer_range))),
      dense_(register_module("dense", BiasedProjection(config.hidden_size, config.hidden_size,
                                                       config.initializer_range))) {}

at::Tensor BloomAttentionImpl::forward(const at::Tensor& normalised_BTD, const Alibi& alibi,
                                       KvCache* cache, int64_t layer) const {
  const at::Tensor fused = query_key_value_->after_norm(normalised_BTD);
  const int64_t batch = fused.size(0), tokens = fused.size(1);
  const auto parts =  // query, key and value, each [B, N, T, H]: views
      fused.view({batch, tokens, heads_, 3, fused.size(2) / (3 * heads_)})
          .transpose(1, 2)
          .unbind(3);
  const at::Tensor mixed = cache == nullptr
                               ? sherd::ops::attention(parts[0], parts[1], parts[2], alibi.slopes)
                               : cache->attend(layer, parts[0], parts[1], parts[2], alibi.slopes);
  return dense_->forward(mixed);
}

BloomMlpImpl::BloomMlpImpl(const BloomConfig& config)
    : dense_h_to_4h_(register_module(
          "dense_h_to_4h",
          BiasedProjection(config.hidden_size, 4 * config.hidden_size, config.initializer_range))),
      dense_4h_to_h_(register_module(
          "dense_4h_to_h",
          BiasedProjection(4 * config.hidden_size, config.hidden_size, config.initializer_range))) {
}

at::Tensor BloomMlpImpl::forward(const at::Tensor& normalised_BTD) const {
  // The first bias is added in the pass that computes GELU.
  const at::Tensor wide = sherd::ops::linear_after_norm(normalised_BTD, dense_h_to_4h_->weight);
  return dense_4h_to_h_->forward(sherd::ops::bias_gelu(wide, dense_h_to_4h_->bias));
}

BloomBlockImpl::BloomBlockImpl(const BloomConfig& config)
    : residual_is_normalised_(config.apply_residual_connection_post_layernorm),
      input_layernorm_(register_module("input_layernorm",
                                       LayerNorm(config.hidden_size, config.layer_norm_epsilon))),
      self_attention_(register_module("self_attention", BloomAttention(config))),
      post_attention_layernorm_(register_module(
          "post_attention_layernorm", LayerNorm(config.hidden_size, config.layer_norm_epsilon))),
      mlp_(register_module("mlp", BloomMlp(config))) {}

at::Tensor BloomBlockImpl::forward(const at::Tensor& input_BTD, const Alibi& alibi, KvCache* cache,
                                   int64_t layer) {
  const at::Tensor normalised = input_layernorm_->forward(input_BTD);
  const auto [attended, normalised_again] =
      post_attention_layernorm_->forward(self_attention_->forward(normalised, alibi, cache, layer),
                                         residual_is_normalised_ ? normalised : input_BTD);
  return (residual_is_normalised_ ? normalised_again : attended) + mlp_->forward(normalised_again);
}

BloomDecoderImpl::BloomDecoderImpl(const BloomConfig& config)
    : word_embeddings(register_module(
          "word_embeddings",
          TokenEmbedding(config.vocab_size, config.hidden_size, config.initializer_range))),
      word_embeddings_layernorm(register_module(
          "word_embeddings_layernorm", LayerNorm(config.hidden_size, config.layer_norm_epsilon))),
      ln_f(nullptr) {
  auto list = register_module("h", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < config.n_layer; ++i) {
    h.push_back(list->register_module(std::to_string(i), sherd::Unit<BloomBlock>(config)));
  }
  ln_f = register_module("ln_f", LayerNorm(config.hidden_size, config.layer_norm_epsilon));
}

at::Tensor BloomDecoderImpl::forward(const at::Tensor& input_ids_BT, const Alibi& alibi,
                                     KvCache* cache) {
  at::Tensor hidden_BTD =
      word_embeddings_layernorm->forward(word_embeddings->forward(input_ids_BT));
  for (size_t i = 0; i < h.size(); ++i) {
    hidden_BTD = h[i](hidden_BTD, alibi, cache, static_cast<int64_t>(i));
  }
  return hidden_BTD;
}

BloomImpl::BloomImpl(const BloomConfig& config)
    : config_(config), decoder_(register_module("transformer", BloomDecoder(config))) {
  if (!config.tie_word_embeddings) {
    head_ = register_module(
        "lm_head", Projection(config.hidden_size, config.vocab_size, config.initializer_range));
  }
}

at::Tensor BloomImpl::hidden_states(const at::Tensor& input_ids_BT, KvCache* cache) {
  const Alibi alibi{alibi_slopes(config_.n_head).to(input_ids_BT.device())};
  return decoder_->forward(input_ids_BT, alibi, cache);
}

at::Tensor BloomImpl::final_norm(const at::Tensor& hidden) {
  return decoder_->ln_f->forward(hidden);
}

const at::Tensor& BloomImpl::head_weight() const {
  return head_ ? head_->weight : decoder_->word_embeddings->weight;
}

}  // namespace llm::model
