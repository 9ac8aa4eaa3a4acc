// StableLM 2: Llama with LayerNorm, and with rotary positions in a quarter of each head.
// Paper: arXiv:2402.17834.

#include "tests/llm/io/stablelm_family.h"

#include <memory>

#include "llm/families/fixed_fields.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"
#include "llm/model/self_attention.h"

namespace llm::families {
namespace {

model::DecoderConfig parse_stablelm(const JsonFields& fields) {
  refuse_other_layers(fields, {"StableLmForCausalLM"});
  refuse_windows(fields);
  refuse_unless(fields, {{"hidden_dropout", 0.0},
                         {"use_qkv_bias", false},
                         {"qk_layernorm", false},
                         {"use_parallel_residual", false}});
  model::DecoderConfig config = read_shape(
      fields, {.context_length = 4'096, .has_partial_rotary = true, .rotated_share = 0.25});
  config.norm_epsilon = fields.number("layer_norm_eps", 0, 1e-5);
  return config;
}

std::shared_ptr<model::NormImpl> stablelm_norm(const model::DecoderConfig& config) {
  return std::make_shared<model::LayerNormImpl>(config.hidden_size, config.norm_epsilon);
}

model::LayerParts stablelm_layer(const model::DecoderConfig& config, int64_t layer) {
  model::LayerParts parts;
  parts.attention_norm = stablelm_norm(config);
  parts.attention = std::make_shared<model::RotaryAttention>(config, layer);
  parts.feed_forward_norm = stablelm_norm(config);
  parts.feed_forward = std::make_shared<model::GatedMlp>(config);
  parts.names = {{"self_attn", parts.attention},
                 {"mlp", parts.feed_forward},
                 {"input_layernorm", parts.attention_norm},
                 {"post_attention_layernorm", parts.feed_forward_norm}};
  return parts;
}

model::CausalLm build_stablelm(const model::DecoderConfig& config) {
  model::DecoderParts parts;
  parts.embedding_name = "embed_tokens";
  parts.embedding =
      model::TokenEmbedding(config.vocab_size, config.hidden_size, config.initializer_range);
  parts.layers_name = "layers";
  parts.layers = config.layers;
  parts.layer = [&config](int64_t layer) { return stablelm_layer(config, layer); };
  parts.final_norm_name = "norm";
  parts.final_norm = stablelm_norm(config);
  return model::CausalLm(model::CausalLmNames{"stablelm", "model"}, config, parts);
}

}  // namespace

const Family& stablelm_family() {
  static const Family family = {.model_type = "stablelm",
                                .parse = &parse_stablelm,
                                .build = &build_stablelm,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

}  // namespace llm::families
