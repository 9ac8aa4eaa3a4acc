#include "llm/families/llama_like.h"

#include <memory>

#include <fmt/core.h>

#include "llm/families/fixed_fields.h"
#include "llm/families/rope_fields.h"
#include "llm/model/decoder.h"
#include "llm/model/self_attention.h"

namespace llm::families {
namespace {

std::shared_ptr<model::NormImpl> norm_of(const model::DecoderConfig& config) {
  return std::make_shared<model::RmsNormImpl>(config.hidden_size, config.norm_epsilon,
                                              config.norm_gain);
}

model::LayerParts layer_of(const model::DecoderConfig& config, int64_t layer) {
  model::LayerParts parts;
  parts.attention = std::make_shared<model::RotaryAttention>(config, layer);
  parts.feed_forward = std::make_shared<model::GatedMlp>(config);
  parts.names = {{"self_attn", parts.attention}, {"mlp", parts.feed_forward}};
  const auto add_norm = [&](std::shared_ptr<model::NormImpl>& place, const char* name) {
    place = norm_of(config);
    parts.names.emplace_back(name, place);
  };
  // A norm's name tells after what it comes; the second of Llama is before the feed-forward part.
  switch (config.norm_placement) {
    case model::NormPlacement::Before:
      add_norm(parts.attention_norm, "input_layernorm");
      add_norm(parts.feed_forward_norm, "post_attention_layernorm");
      break;
    case model::NormPlacement::After:
      add_norm(parts.attended_norm, "post_attention_layernorm");
      add_norm(parts.fed_norm, "post_feedforward_layernorm");
      break;
    case model::NormPlacement::Around:
      add_norm(parts.attention_norm, "input_layernorm");
      add_norm(parts.attended_norm, "post_attention_layernorm");
      add_norm(parts.feed_forward_norm, "pre_feedforward_layernorm");
      add_norm(parts.fed_norm, "post_feedforward_layernorm");
      break;
  }
  parts.residual_scale = config.residual_scale;
  return parts;
}

}  // namespace

model::DecoderConfig read_shape(const JsonFields& fields, const ShapeDefaults& defaults) {
  model::DecoderConfig config;
  config.hidden_size = fields.count("hidden_size", JsonFields::kMostUnits);
  config.feed_forward_size = fields.count("intermediate_size", JsonFields::kMostUnits);
  config.layers = fields.count("num_hidden_layers", JsonFields::kMostLayers);
  config.heads = fields.count("num_attention_heads", JsonFields::kMostUnits);
  config.key_heads = fields.count("num_key_value_heads", JsonFields::kMostUnits, config.heads);
  if (config.heads % config.key_heads != 0) {
    fields.fail("num_key_value_heads", fmt::format("{} does not divide \"num_attention_heads\" {}",
                                                   config.key_heads, config.heads));
  }
  const bool divides = fields.find("head_dim") == nullptr && defaults.head_size == 0;
  if (divides && config.hidden_size % config.heads != 0) {
    fields.fail("num_attention_heads",
                fmt::format("{} does not divide \"hidden_size\" {}, and there is no \"head_dim\"",
                            config.heads, config.hidden_size));
  }
  config.head_size = fields.count("head_dim", JsonFields::kMostUnits,
                                  divides ? config.hidden_size / config.heads : defaults.head_size);
  if (config.head_size % 2 != 0) {
    fields.fail("head_dim", fmt::format("{} is odd; rotary positions pair them", config.head_size));
  }
  if (config.head_size > JsonFields::kMostUnits / config.heads) {
    fields.fail("num_attention_heads",
                fmt::format("times \"head_dim\" is beyond {}", JsonFields::kMostUnits));
  }
  config.vocab_size = fields.count("vocab_size", JsonFields::kMostUnits);
  config.context_length =
      fields.count("max_position_embeddings", JsonFields::kMostUnits, defaults.context_length);
  config.norm_epsilon = fields.number("rms_norm_eps", 0, defaults.norm_epsilon);
  config.initializer_range = fields.number("initializer_range", 0, config.initializer_range);
  config.tied_embedding = fields.flag("tie_word_embeddings", defaults.tied_embedding);
  const RopeSetting rope = {.context_length = config.context_length,
                            .head_size = config.head_size,
                            .theta = defaults.rope_theta,
                            .is_partial = defaults.has_partial_rotary,
                            .rotated_share = defaults.rotated_share,
                            .original_context = defaults.original_context_length,
                            .yarn_is_longrope = defaults.yarn_is_longrope};
  if (defaults.window_rope) {
    const LayerRopes ropes = read_layer_ropes(fields, rope, *defaults.window_rope);
    config.rope = ropes.full;
    config.window_rope = ropes.window;
  } else {
    config.rope = read_rope(fields, rope);
  }
  return config;
}

void refuse_other_layers(const JsonFields& fields, const std::vector<const char*>& architectures) {
  refuse_unless(fields, {{"hidden_act", "silu"},
                         {"attn_logit_softcapping", nullptr},
                         {"final_logit_softcapping", nullptr}});
  refuse_other_attention(fields, architectures);
}

void refuse_other_attention(const JsonFields& fields,
                            const std::vector<const char*>& architectures) {
  refuse_other_computations(fields);
  fields.note_dropout({"attention_dropout"});
  refuse_unless(fields, {{"attention_bias", false},
                         {"mlp_bias", false},
                         {"rope_interleaved", false},
                         {"qk_norm", false},
                         {"use_qk_norm", false}});
  refuse_other_architectures(fields, architectures);
}

model::CausalLm build_llama_like(const std::string& model_type,
                                 const model::DecoderConfig& config) {
  model::DecoderParts parts;
  parts.embedding_name = "embed_tokens";
  parts.embedding =
      model::TokenEmbedding(config.vocab_size, config.hidden_size, config.initializer_range);
  parts.embedding_scale = config.embedding_scale;
  parts.rounds_embedding_scale = config.rounds_embedding_scale;
  parts.layers_name = "layers";
  parts.layers = config.layers;
  parts.layer = [&config](int64_t layer) { return layer_of(config, layer); };
  parts.final_norm_name = "norm";
  parts.final_norm = norm_of(config);
  return model::CausalLm(model::CausalLmNames{model_type, "model"}, config, parts);
}

}  // namespace llm::families
