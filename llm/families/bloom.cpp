// The BLOOM family. Names of modules and parameters are those transformers saves.
// Paper: arXiv:2211.05100.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <fmt/core.h>

#include "llm/families/family.h"
#include "llm/families/fixed_fields.h"
#include "llm/model/decoder.h"
#include "ops/bias_gelu.h"
#include "ops/linear.h"

namespace llm::families {
namespace {

using Json = nlohmann::ordered_json;

// The feed-forward part is 4 × as wide as the model; transformers never reads another width.
void check_inner_width(const JsonFields& fields, const model::DecoderConfig& config) {
  const Json* found = fields.find("n_inner");
  if (found != nullptr && *found != 4 * config.hidden_size) {
    fields.fail("n_inner",
                fmt::format("{} is not implemented, only null or {}, four times the width",
                            found->dump(), 4 * config.hidden_size));
  }
}

void refuse_what_is_not_implemented(const JsonFields& fields, const model::DecoderConfig& config) {
  refuse_other_computations(fields);
  fields.note_dropout({"hidden_dropout", "attention_dropout"});
  check_inner_width(fields, config);
  if (config.tied_embedding) {
    // Checkpoints of the base model: its embedding is all that the head needs.
    refuse_other_architectures(fields, {"BloomForCausalLM", "BloomModel"});
  } else {
    refuse_other_architectures(fields, {"BloomForCausalLM"});
  }
}

model::DecoderConfig parse_bloom(const JsonFields& fields) {
  const char* width = fields.spelling({"hidden_size", "n_embed"});
  const char* heads = fields.spelling({"n_head", "num_attention_heads"});
  const char* layers = fields.spelling({"n_layer", "num_hidden_layers"});
  model::DecoderConfig config;
  config.hidden_size = fields.count(width, JsonFields::kMostUnits / 4);
  config.heads = fields.count(heads, JsonFields::kMostUnits);
  if (config.hidden_size % config.heads != 0) {
    fields.fail(heads, fmt::format("{} does not divide \"{}\" {}", config.heads, width,
                                   config.hidden_size));
  }
  config.key_heads = config.heads;
  config.head_size = config.hidden_size / config.heads;
  config.feed_forward_size = 4 * config.hidden_size;
  config.layers = fields.count(layers, JsonFields::kMostLayers);
  config.vocab_size = fields.count("vocab_size", JsonFields::kMostUnits);
  // ALiBi sets no limit; this is the length the model was trained with.
  config.context_length = fields.count("seq_length", JsonFields::kMostUnits, 2'048);
  config.norm_epsilon = fields.number("layer_norm_epsilon", 0, 1e-5);
  config.initializer_range = fields.number("initializer_range", 0, config.initializer_range);
  config.tied_embedding = fields.flag("tie_word_embeddings", true);
  config.residual_is_normalised = fields.flag("apply_residual_connection_post_layernorm", false);
  refuse_what_is_not_implemented(fields, config);
  return config;
}

// Shapes: T tokens, D model width, N heads, H = D / N head size. The feed-forward part is 4 × D
// wide.

// Self-attention with ALiBi. Rows of the fused projection lie head by head: q, k, v of head 0, q,
// k, v of head 1, …
class BloomAttention : public model::AttentionImpl {
 public:
  BloomAttention(const model::DecoderConfig& config, int64_t layer)
      : layer_(layer), heads_(config.heads), head_size_(config.head_size) {
    const int64_t width = config.hidden_size;
    const double std = config.initializer_range;
    query_key_value_ = register_module("query_key_value",
                                       model::Projection(width, 3 * width, std, /*has_bias=*/true));
    dense_ = register_module("dense", model::Projection(width, width, std, /*has_bias=*/true));
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD,
                                   const model::Context& context) const override {
    const at::Tensor fused = query_key_value_->after_norm(normalised_TD, context.dropout_keys_T);
    const auto parts =  // query, key and value, each [T, N, H]: views
        fused.view({fused.size(0), heads_, 3, head_size_}).unbind(2);
    return dense_->forward(model::attend(parts[0], parts[1], parts[2], context, layer_),
                           context.dropout_keys_T);
  }

 private:
  int64_t layer_;
  int64_t heads_;
  int64_t head_size_;
  model::Projection query_key_value_{nullptr}, dense_{nullptr};
};

// down(gelu(up(x))) with the tanh form of GELU
class BloomMlp : public model::FeedForwardImpl {
 public:
  explicit BloomMlp(const model::DecoderConfig& config) {
    const int64_t width = config.hidden_size, inner = config.feed_forward_size;
    const double std = config.initializer_range;
    dense_h_to_4h_ =
        register_module("dense_h_to_4h", model::Projection(width, inner, std, /*has_bias=*/true));
    dense_4h_to_h_ =
        register_module("dense_4h_to_h", model::Projection(inner, width, std, /*has_bias=*/true));
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD,
                                   const model::Context& context) const override {
    const at::Tensor& keys = context.dropout_keys_T;
    // The first bias is added in the pass that computes GELU.
    const at::Tensor wide =
        sherd::ops::linear_after_norm(normalised_TD, dense_h_to_4h_->weight, std::nullopt,
                                      model::low_rank_of(*dense_h_to_4h_, keys));
    return dense_4h_to_h_->forward(sherd::ops::bias_gelu(wide, dense_h_to_4h_->bias), keys);
  }

 private:
  model::Projection dense_h_to_4h_{nullptr}, dense_4h_to_h_{nullptr};
};

std::shared_ptr<model::NormImpl> bloom_norm(const model::DecoderConfig& config) {
  return std::make_shared<model::LayerNormImpl>(config.hidden_size, config.norm_epsilon);
}

model::LayerParts bloom_layer(const model::DecoderConfig& config, int64_t layer) {
  model::LayerParts parts;
  parts.attention_norm = bloom_norm(config);
  parts.attention = std::make_shared<BloomAttention>(config, layer);
  parts.feed_forward_norm = bloom_norm(config);
  parts.feed_forward = std::make_shared<BloomMlp>(config);
  parts.names = {{"input_layernorm", parts.attention_norm},
                 {"self_attention", parts.attention},
                 {"post_attention_layernorm", parts.feed_forward_norm},
                 {"mlp", parts.feed_forward}};
  parts.residual_is_normalised = config.residual_is_normalised;
  return parts;
}

model::CausalLm build_bloom(const model::DecoderConfig& config) {
  model::DecoderParts parts;
  parts.embedding_name = "word_embeddings";
  parts.embedding =
      model::TokenEmbedding(config.vocab_size, config.hidden_size, config.initializer_range);
  parts.embedding_norm_name = "word_embeddings_layernorm";
  parts.embedding_norm = bloom_norm(config);
  parts.layers_name = "h";
  parts.layers = config.layers;
  parts.layer = [&config](int64_t layer) { return bloom_layer(config, layer); };
  parts.final_norm_name = "ln_f";
  parts.final_norm = bloom_norm(config);
  return model::CausalLm(model::CausalLmNames{"bloom", "transformer"}, config, parts);
}

}  // namespace

const Family& bloom_family();  // families.cpp names it

const Family& bloom_family() {
  static const Family family = {
      .model_type = "bloom",
      .parse = &parse_bloom,
      .build = &build_bloom,
      .tensors = {.derived = {}},
      .harmless_fields = {"pretraining_tp", "slow_but_exact", "offset_alibi",
                          "attention_softmax_in_fp32", "bias_dropout_fusion",
                          "masked_softmax_fusion", "skip_bias_add"}};
  return family;
}

}  // namespace llm::families
