#include "llm/model/llama.h"

#include <ATen/TensorOperators.h>

#include "ops/attention.h"
#include "ops/swiglu_linear.h"

namespace llm::model {
namespace {

// [B, T, N × H] -> [B, N, T, H]: a view
at::Tensor split_heads(const at::Tensor& packed, int64_t head_size) {
  return packed.view({packed.size(0), packed.size(1), packed.size(2) / head_size, head_size})
      .transpose(1, 2);
}

}  // namespace

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config)
    : head_size_(config.head_dim),
      q_proj_(register_module(
          "q_proj", Projection(config.hidden_size, config.num_attention_heads * config.head_dim,
                               config.initializer_range))),
      k_proj_(register_module(
          "k_proj", Projection(config.hidden_size, config.num_key_value_heads * config.head_dim,
                               config.initializer_range))),
      v_proj_(register_module(
          "v_proj", Projection(config.hidden_size, config.num_key_value_heads * config.head_dim,
                               config.initializer_range))),
      o_proj_(register_module("o_proj", Projection(config.num_attention_heads * config.head_dim,
                                                   config.hidden_size, config.initializer_range))) {
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& normalised_BTD,
                                       const sherd::ops::RotaryTables& rotary, KvCache* cache,
                                       int64_t layer) const {
  const at::Tensor query =
      sherd::ops::rotary(split_heads(q_proj_->after_norm(normalised_BTD), head_size_), rotary);
  const at::Tensor key =
      sherd::ops::rotary(split_heads(k_proj_->after_norm(normalised_BTD), head_size_), rotary);
  const at::Tensor value = split_heads(v_proj_->after_norm(normalised_BTD), head_size_);
  const at::Tensor mixed = cache == nullptr ? sherd::ops::attention(query, key, value)
                                            : cache->attend(layer, query, key, value);
  return o_proj_->forward(mixed);
}

LlamaMlpImpl::LlamaMlpImpl(const LlamaConfig& config)
    : gate_proj_(register_module(
          "gate_proj",
          Projection(config.hidden_size, config.intermediate_size, config.initializer_range))),
      up_proj_(register_module("up_proj", Projection(config.hidden_size, config.intermediate_size,
                                                     config.initializer_range))),
      down_proj_(register_module(
          "down_proj",
          Projection(config.intermediate_size, config.hidden_size, config.initializer_range))) {}

at::Tensor LlamaMlpImpl::forward(const at::Tensor& normalised_BTD) const {
  return sherd::ops::swiglu_linear(gate_proj_->after_norm(normalised_BTD),
                                   up_proj_->after_norm(normalised_BTD), down_proj_->weight);
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaConfig& config)
    : self_attn_(register_module("self_attn", LlamaAttention(config))),
      mlp_(register_module("mlp", LlamaMlp(config))),
      input_layernorm_(
          register_module("input_layernorm", RmsNorm(config.hidden_size, config.rms_norm_eps))),
      post_attention_layernorm_(register_module(
          "post_attention_layernorm", RmsNorm(config.hidden_size, config.rms_norm_eps))) {}

at::Tensor LlamaDecoderLayerImpl::forward(const at::Tensor& input_BTD,
                                          const sherd::ops::RotaryTables& rotary, KvCache* cache,
                                          int64_t layer) {
  const at::Tensor mixed =
      self_attn_->forward(input_layernorm_->forward(input_BTD), rotary, cache, layer);
  const auto [attended, normalised] = post_attention_layernorm_->forward(mixed, input_BTD);
  return attended + mlp_->forward(normalised);
}

LlamaDecoderImpl::LlamaDecoderImpl(const LlamaConfig& config)
    : embed_tokens(register_module(
          "embed_tokens",
          TokenEmbedding(config.vocab_size, config.hidden_size, config.initializer_range))),
      norm(nullptr) {
  auto list = register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers.push_back(
        list->register_module(std::to_string(i), sherd::Unit<LlamaDecoderLayer>(config)));
  }
  norm = register_module("norm", RmsNorm(config.hidden_size, config.rms_norm_eps));
}

at::Tensor LlamaDecoderImpl::forward(const at::Tensor& input_ids_BT,
                                     const sherd::ops::RotaryTables& rotary, KvCache* cache) {
  at::Tensor hidden_BTD = embed_tokens->forward(input_ids_BT);
  for (size_t i = 0; i < layers.size(); ++i) {
    hidden_BTD = layers[i](hidden_BTD, rotary, cache, static_cast<int64_t>(i));
  }
  return hidden_BTD;
}

LlamaImpl::LlamaImpl(const LlamaConfig& config)
    : config_(config),
      rope_(config.rope, config.head_dim),
      decoder_(register_module("model", LlamaDecoder(config))) {
  if (!config.tie_word_embeddings) {
    head_ = register_module(
        "lm_head", Projection(config.hidden_size, config.vocab_size, config.initializer_range));
  }
}

at::Tensor LlamaImpl::hidden_states(const at::Tensor& input_ids_BT, KvCache* cache) {
  const at::Device device = input_ids_BT.device();
  if (cache == nullptr || cache->empty()) {
    return decoder_->forward(input_ids_BT, rope_.tables(input_ids_BT.size(1), device), cache);
  }
  const auto tables = rope_.tables(cache->capacity_tokens(), device);
  const auto of_rows = [&](const at::Tensor& table) {  // [B, 1, 1, H / 2]
    return table.index_select(0, cache->positions()).unsqueeze(1).unsqueeze(1);
  };
  return decoder_->forward(input_ids_BT, {of_rows(tables.cosine), of_rows(tables.sine)}, cache);
}

at::Tensor LlamaImpl::final_norm(const at::Tensor& hidden) {
  return decoder_->norm->forward(hidden);
}

const at::Tensor& LlamaImpl::head_weight() const {
  return head_ ? head_->weight : decoder_->embed_tokens->weight;
}

}  // namespace llm::model
