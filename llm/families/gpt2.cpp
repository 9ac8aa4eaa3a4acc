// GPT-2. Names of modules and parameters are those transformers saves.
// Paper: "Language Models are Unsupervised Multitask Learners", OpenAI 2019.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/unsafe_split_with_sizes.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include "llm/families/family.h"
#include "llm/families/fixed_fields.h"
#include "llm/model/decoder.h"
#include "llm/model/parts.h"
#include "ops/bias_gelu.h"
#include "ops/linear.h"
#include "ops/q8_0.h"
#include "sherd/lora.h"

namespace llm::families {
namespace {

void refuse_other_gpt2(const JsonFields& fields) {
  refuse_other_computations(fields);
  fields.note_dropout({"attn_pdrop", "embd_pdrop", "resid_pdrop"});
  refuse_unless(fields, {{"activation_function", "gelu_new"},
                         {"scale_attn_weights", true},
                         {"scale_attn_by_inverse_layer_idx", false},
                         {"reorder_and_upcast_attn", false}});
  refuse_other_architectures(fields, {"GPT2LMHeadModel", "GPT2Model"});
}

model::DecoderConfig parse_gpt2(const JsonFields& fields) {
  refuse_other_gpt2(fields);
  const char* width = fields.spelling({"n_embd", "hidden_size"});
  const char* heads = fields.spelling({"n_head", "num_attention_heads"});
  const char* layers = fields.spelling({"n_layer", "num_hidden_layers"});
  const char* positions = fields.spelling({"n_positions", "n_ctx", "max_position_embeddings"});
  model::DecoderConfig config;
  config.hidden_size = fields.count(width, JsonFields::kMostUnits / 4, 768);
  config.heads = fields.count(heads, JsonFields::kMostUnits, 12);
  if (config.hidden_size % config.heads != 0) {
    fields.fail(heads, fmt::format("{} does not divide \"{}\" {}", config.heads, width,
                                   config.hidden_size));
  }
  config.key_heads = config.heads;
  config.head_size = config.hidden_size / config.heads;
  config.feed_forward_size =
      fields.count("n_inner", JsonFields::kMostUnits, 4 * config.hidden_size);
  config.layers = fields.count(layers, JsonFields::kMostLayers, 12);
  config.vocab_size = fields.count("vocab_size", JsonFields::kMostUnits, 50'257);
  config.context_length = fields.count(positions, JsonFields::kMostUnits, 1'024);
  config.norm_epsilon = fields.number("layer_norm_epsilon", 0, 1e-5);
  config.initializer_range = fields.number("initializer_range", 0, config.initializer_range);
  config.tied_embedding = fields.flag("tie_word_embeddings", true);
  config.learned_positions = true;
  return config;
}

// Shapes: T tokens, D model width, N heads, H = D / N head size.

// A linear map whose weight is [inputs, outputs]: transformers' Conv1D.
class Conv1DImpl : public torch::nn::Module, public sherd::LoraModule {
 public:
  Conv1DImpl(int64_t inputs, int64_t outputs, double std)
      : weight(
            register_parameter("weight", at::empty({inputs, outputs}, at::kFloat).normal_(0, std))),
        bias(register_parameter("bias", at::zeros({outputs}, at::kFloat))) {}

  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const at::Tensor& dropout_keys) const {
    return sherd::ops::linear(input, weight.t(), bias, model::low_rank_of(*this, dropout_keys));
  }
  // Without the bias where `has_bias` is false.
  [[nodiscard]] at::Tensor after_norm(const at::Tensor& normalised, const at::Tensor& dropout_keys,
                                      bool has_bias = true) const {
    return sherd::ops::linear_after_norm(normalised, weight.t(),
                                         has_bias ? std::optional(bias) : std::nullopt,
                                         model::low_rank_of(*this, dropout_keys));
  }

  [[nodiscard]] int64_t in_features() const override { return weight.size(0); }
  [[nodiscard]] int64_t out_features() const override {
    return sherd::ops::q8_0::columns_of(weight);
  }

  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(Conv1D);

class Gpt2Attention : public model::AttentionImpl {
 public:
  Gpt2Attention(const model::DecoderConfig& config, int64_t layer)
      : layer_(layer), heads_(config.heads), width_(config.hidden_size) {
    const double std = config.initializer_range;
    c_attn_ = register_module("c_attn", Conv1D(width_, 3 * width_, std));
    c_proj_ = register_module("c_proj", Conv1D(width_, width_, std));
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD,
                                   const model::Context& context) const override {
    const at::Tensor& keys = context.dropout_keys_T;
    auto parts = at::unsafe_split_with_sizes(c_attn_->after_norm(normalised_TD, keys),
                                             {width_, width_, width_}, 1);
    for (at::Tensor& part : parts) {  // query, key and value -> [T, N, H]: views
      part = part.view({part.size(0), heads_, width_ / heads_});
    }
    return c_proj_->forward(model::attend(parts[0], parts[1], parts[2], context, layer_), keys);
  }

 private:
  int64_t layer_;
  int64_t heads_;
  int64_t width_;
  Conv1D c_attn_{nullptr}, c_proj_{nullptr};
};

// down(gelu(up(x))) with the tanh form of GELU
class Gpt2Mlp : public model::FeedForwardImpl {
 public:
  explicit Gpt2Mlp(const model::DecoderConfig& config) {
    const int64_t width = config.hidden_size, inner = config.feed_forward_size;
    c_fc_ = register_module("c_fc", Conv1D(width, inner, config.initializer_range));
    c_proj_ = register_module("c_proj", Conv1D(inner, width, config.initializer_range));
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD,
                                   const model::Context& context) const override {
    const at::Tensor& keys = context.dropout_keys_T;
    // The first bias is added in the pass that computes GELU.
    const at::Tensor wide = c_fc_->after_norm(normalised_TD, keys, /*has_bias=*/false);
    return c_proj_->forward(sherd::ops::bias_gelu(wide, c_fc_->bias), keys);
  }

 private:
  Conv1D c_fc_{nullptr}, c_proj_{nullptr};
};

std::shared_ptr<model::NormImpl> gpt2_norm(const model::DecoderConfig& config) {
  return std::make_shared<model::LayerNormImpl>(config.hidden_size, config.norm_epsilon);
}

model::LayerParts gpt2_layer(const model::DecoderConfig& config, int64_t layer) {
  model::LayerParts parts;
  parts.attention_norm = gpt2_norm(config);
  parts.attention = std::make_shared<Gpt2Attention>(config, layer);
  parts.feed_forward_norm = gpt2_norm(config);
  parts.feed_forward = std::make_shared<Gpt2Mlp>(config);
  parts.names = {{"ln_1", parts.attention_norm},
                 {"attn", parts.attention},
                 {"ln_2", parts.feed_forward_norm},
                 {"mlp", parts.feed_forward}};
  return parts;
}

model::CausalLm build_gpt2(const model::DecoderConfig& config) {
  const auto table = [&](int64_t rows) {
    return model::TokenEmbedding(rows, config.hidden_size, config.initializer_range);
  };
  model::DecoderParts parts;
  parts.embedding_name = "wte";
  parts.embedding = table(config.vocab_size);
  parts.position_embedding_name = "wpe";
  parts.position_embedding = table(config.context_length);
  parts.layers_name = "h";
  parts.layers = config.layers;
  parts.layer = [&config](int64_t layer) { return gpt2_layer(config, layer); };
  parts.final_norm_name = "ln_f";
  parts.final_norm = gpt2_norm(config);
  return model::CausalLm(model::CausalLmNames{"gpt2", "transformer"}, config, parts);
}

}  // namespace

const Family& gpt2_family();  // families.cpp names it

const Family& gpt2_family() {
  static const Family family = {
      .model_type = "gpt2",
      .parse = &parse_gpt2,
      .build = &build_gpt2,
      // Causal masks, of the hub's own files.
      .tensors = {.derived = {".attn.bias", ".attn.masked_bias"}},
      .harmless_fields = {"summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                          "summary_type", "summary_use_proj"}};
  return family;
}

}  // namespace llm::families
