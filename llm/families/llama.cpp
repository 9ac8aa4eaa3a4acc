// The Llama family (1 to 3.x). Names of modules and parameters are those of Hugging Face's
// checkpoints.  Paper: arXiv:2302.13971.

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "llm/families/family.h"
#include "llm/families/fixed_fields.h"
#include "llm/model/decoder.h"
#include "ops/linear.h"
#include "ops/swiglu_linear.h"

namespace llm::families {
namespace {

using Json = nlohmann::ordered_json;

void refuse_what_is_not_implemented(const JsonFields& fields) {
  refuse_other_computations(fields);
  refuse_unless(fields, {{"hidden_act", "silu"},
                         {"attention_bias", false},
                         {"mlp_bias", false},
                         {"attention_dropout", 0.0},
                         {"sliding_window", nullptr},
                         {"use_sliding_window", false},
                         {"partial_rotary_factor", 1.0},
                         {"rope_interleaved", false},
                         {"qk_norm", false},
                         {"use_qk_norm", false},
                         {"attn_logit_softcapping", nullptr},
                         {"final_logit_softcapping", nullptr}});
  refuse_other_architectures(fields, {"LlamaForCausalLM"});
  if (const Json* layers = fields.find("layer_types");
      layers != nullptr && std::any_of(layers->begin(), layers->end(),
                                       [](const Json& type) { return type != "full_attention"; })) {
    fields.fail("layer_types", layers->dump() + " is not implemented, only \"full_attention\"");
  }
}

// The object of `rope_scaling` or `rope_parameters`. It describes nothing but the computation, so
// that a field that is not known here is refused.
model::RopeConfig read_rope(const JsonFields& rope, double theta) {
  const auto type = rope.text("rope_type") ? rope.text("rope_type") : rope.text("type");
  const auto legacy_type = rope.text("type");
  if (legacy_type && legacy_type != type) {
    rope.fail("type", '"' + *legacy_type + "\" contradicts \"rope_type\"");
  }
  const bool llama3 = type == "llama3";
  if (type && !llama3 && type != "default") {
    rope.fail("rope_type", '"' + *type + "\" is not implemented, only \"default\" and \"llama3\"");
  }
  refuse_unless(rope, {{"partial_rotary_factor", 1.0}});
  static constexpr const char* kCommon[] = {"rope_type", "type", "rope_theta",
                                            "partial_rotary_factor"};
  static constexpr const char* kLlama3[] = {"factor", "low_freq_factor", "high_freq_factor",
                                            "original_max_position_embeddings"};
  for (const auto& [name, value] : rope.object().items()) {
    const auto is_name = [&name = name](const char* known) { return name == known; };
    if (!value.is_null() && std::none_of(std::begin(kCommon), std::end(kCommon), is_name) &&
        !(llama3 && std::any_of(std::begin(kLlama3), std::end(kLlama3), is_name))) {
      rope.fail(name.c_str(),
                "is not implemented with rope_type \"" + type.value_or("default") + "\"");
    }
  }
  model::RopeConfig config{.theta = rope.number("rope_theta", 0, theta)};
  if (llama3) {
    config.scaling =
        model::Llama3Scaling{.factor = rope.number("factor", 0),
                             .low_freq_factor = rope.number("low_freq_factor", 0),
                             .high_freq_factor = rope.number("high_freq_factor", 0),
                             .original_context_tokens = rope.count(
                                 "original_max_position_embeddings", JsonFields::kMostUnits)};
    if (config.scaling->high_freq_factor <= config.scaling->low_freq_factor) {
      rope.fail("high_freq_factor", "must be above \"low_freq_factor\"");
    }
  }
  return config;
}

constexpr const char* kScaling = "rope_scaling";        // of transformers up to 4
constexpr const char* kParameters = "rope_parameters";  // of transformers from 5 on

// The fields of one spelling that have a value, "type" under its later name. Empty if it is
// missing.
Json rope_fields(const JsonFields& fields, const char* spelling) {
  const Json* object = fields.find(spelling);
  if (object != nullptr && !object->is_object()) {
    fields.fail(spelling, "must be an object or null, found " + object->dump());
  }
  Json found = Json::object();
  if (object != nullptr) {
    const bool has_type = object->contains("rope_type");
    for (const auto& [name, value] : object->items()) {
      if (!value.is_null()) {
        found[name == "type" && !has_type ? "rope_type" : name] = value;
      }
    }
  }
  return found;
}

// Tools that write for transformers 4 and 5 have both spellings: together they say what one says
// alone.
model::RopeConfig read_rope(const JsonFields& fields) {
  const double theta = fields.number("rope_theta", 0, model::RopeConfig{}.theta);
  const Json scaling = rope_fields(fields, kScaling);
  Json all = rope_fields(fields, kParameters);
  const std::string spelling = all.empty() ? kScaling : kParameters;
  for (const auto& [name, value] : scaling.items()) {
    const auto other = all.emplace(name, Json(value)).first;
    if (*other != value) {
      fields.fail((std::string(kScaling) + "." + name).c_str(),
                  fmt::format("{} contradicts \"{}.{}\" {}", value.dump(), kParameters, name,
                              other->dump()));
    }
  }
  const model::RopeConfig rope = read_rope(JsonFields(all, fields.place(), spelling + "."), theta);
  if (fields.find("rope_theta") != nullptr && rope.theta != theta) {
    fields.fail("rope_theta", fmt::format("{} contradicts \"{}.rope_theta\" {}",
                                          fields.find("rope_theta")->dump(), spelling,
                                          all.at("rope_theta").dump()));
  }
  return rope;
}

model::DecoderConfig parse_llama(const JsonFields& fields) {
  refuse_what_is_not_implemented(fields);
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
  if (fields.find("head_dim") == nullptr && config.hidden_size % config.heads != 0) {
    fields.fail("num_attention_heads",
                fmt::format("{} does not divide \"hidden_size\" {}, and there is no \"head_dim\"",
                            config.heads, config.hidden_size));
  }
  config.head_size =
      fields.count("head_dim", JsonFields::kMostUnits, config.hidden_size / config.heads);
  if (config.head_size % 2 != 0) {
    fields.fail("head_dim", fmt::format("{} is odd; rotary positions pair them", config.head_size));
  }
  if (config.head_size > JsonFields::kMostUnits / config.heads) {
    fields.fail("num_attention_heads",
                fmt::format("times \"head_dim\" is beyond {}", JsonFields::kMostUnits));
  }
  config.vocab_size = fields.count("vocab_size", JsonFields::kMostUnits);
  config.context_length = fields.count("max_position_embeddings", JsonFields::kMostUnits, 2'048);
  config.norm_epsilon = fields.number("rms_norm_eps", 0, 1e-6);
  config.initializer_range = fields.number("initializer_range", 0, config.initializer_range);
  config.tied_embedding = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields);
  return config;
}

// Shapes: T tokens, D model width, F feed-forward width, N heads, K key heads, H head size.

// [T, N × H] -> [T, N, H]: a view
at::Tensor split_heads(const at::Tensor& packed, int64_t head_size) {
  return packed.view({packed.size(0), packed.size(1) / head_size, head_size});
}

// Self-attention with rotary positions and grouped queries.
class LlamaAttention : public model::AttentionImpl {
 public:
  LlamaAttention(const model::DecoderConfig& config, int64_t layer)
      : layer_(layer), head_size_(config.head_size) {
    const double std = config.initializer_range;
    const int64_t queries = config.heads * head_size_, keys = config.key_heads * head_size_;
    // Side by side in registration order, so that one product can serve them.
    q_proj_ = register_module("q_proj", model::Projection(config.hidden_size, queries, std));
    k_proj_ = register_module("k_proj", model::Projection(config.hidden_size, keys, std));
    v_proj_ = register_module("v_proj", model::Projection(config.hidden_size, keys, std));
    o_proj_ = register_module("o_proj", model::Projection(queries, config.hidden_size, std));
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD,
                                   const model::Context& context) const override {
    auto parts = sherd::ops::linears_after_norm(
        normalised_TD, {q_proj_->weight, k_proj_->weight, v_proj_->weight});
    const auto take_heads = [&](size_t part) {
      return split_heads(std::exchange(parts[part], at::Tensor()), head_size_);
    };
    const at::Tensor query = model::with_position(take_heads(0), context);
    const at::Tensor key = model::with_position(take_heads(1), context);
    // Columns of one matrix with the two, which attention would keep for it: a copy is smaller.
    const at::Tensor value = take_heads(2).contiguous();
    return o_proj_->forward(model::attend(query, key, value, context, layer_));
  }

 private:
  int64_t layer_;
  int64_t head_size_;
  model::Projection q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
};

// down(silu(gate(x)) × up(x))
class LlamaMlp : public model::FeedForwardImpl {
 public:
  explicit LlamaMlp(const model::DecoderConfig& config) {
    const int64_t width = config.hidden_size, inner = config.feed_forward_size;
    const double std = config.initializer_range;
    gate_proj_ = register_module("gate_proj", model::Projection(width, inner, std));
    up_proj_ = register_module("up_proj", model::Projection(width, inner, std));
    down_proj_ = register_module("down_proj", model::Projection(inner, width, std));
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& normalised_TD) const override {
    const auto parts =
        sherd::ops::linears_after_norm(normalised_TD, {gate_proj_->weight, up_proj_->weight});
    return sherd::ops::swiglu_linear(parts[0], parts[1], down_proj_->weight);
  }

 private:
  model::Projection gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};

std::shared_ptr<model::NormImpl> llama_norm(const model::DecoderConfig& config) {
  return std::make_shared<model::RmsNormImpl>(config.hidden_size, config.norm_epsilon);
}

model::LayerParts llama_layer(const model::DecoderConfig& config, int64_t layer) {
  model::LayerParts parts;
  parts.attention = std::make_shared<LlamaAttention>(config, layer);
  parts.feed_forward = std::make_shared<LlamaMlp>(config);
  parts.attention_norm = llama_norm(config);
  parts.feed_forward_norm = llama_norm(config);
  parts.names = {{"self_attn", parts.attention},
                 {"mlp", parts.feed_forward},
                 {"input_layernorm", parts.attention_norm},
                 {"post_attention_layernorm", parts.feed_forward_norm}};
  return parts;
}

model::CausalLm build_llama(const model::DecoderConfig& config) {
  model::DecoderParts parts;
  parts.embedding_name = "embed_tokens";
  parts.embedding =
      model::TokenEmbedding(config.vocab_size, config.hidden_size, config.initializer_range);
  parts.layers_name = "layers";
  parts.layers = config.layers;
  parts.layer = [&config](int64_t layer) { return llama_layer(config, layer); };
  parts.final_norm_name = "norm";
  parts.final_norm = llama_norm(config);
  return model::CausalLm(model::CausalLmNames{"llama", "model"}, config, parts);
}

}  // namespace

const Family& llama_family();  // families.cpp names it

const Family& llama_family() {
  static const Family family = {.model_type = "llama",
                                .parse = &parse_llama,
                                .build = &build_llama,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {"pretraining_tp", "is_llama_config"}};
  return family;
}

}  // namespace llm::families
