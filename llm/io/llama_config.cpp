#include "llm/io/llama_config.h"

#include <algorithm>
#include <iterator>

#include "llm/io/fixed_fields.h"

namespace llm::io {
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

model::RopeConfig read_rope(const JsonFields& fields) {
  const double theta = fields.number("rope_theta", 0, model::RopeConfig{}.theta);
  const Json* scaling = fields.find("rope_scaling");
  const Json* parameters = fields.find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    fields.fail("rope_scaling", "contradicts \"rope_parameters\"; keep one of them");
  }
  const Json* object = parameters != nullptr ? parameters : scaling;
  const char* name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (object == nullptr) {
    return {.theta = theta};
  }
  if (!object->is_object()) {
    fields.fail(name, "must be an object or null, found " + object->dump());
  }
  const model::RopeConfig rope =
      read_rope(JsonFields(*object, fields.place(), std::string(name) + "."), theta);
  if (fields.find("rope_theta") != nullptr && rope.theta != theta) {
    fields.fail("rope_theta", "contradicts \"" + std::string(name) + ".rope_theta\"");
  }
  return rope;
}

}  // namespace

model::LlamaConfig read_llama_config(const JsonFields& fields) {
  refuse_what_is_not_implemented(fields);
  model::LlamaConfig config;
  config.hidden_size = fields.count("hidden_size", JsonFields::kMostUnits);
  config.intermediate_size = fields.count("intermediate_size", JsonFields::kMostUnits);
  config.num_hidden_layers = fields.count("num_hidden_layers", JsonFields::kMostLayers);
  config.num_attention_heads = fields.count("num_attention_heads", JsonFields::kMostUnits);
  config.num_key_value_heads =
      fields.count("num_key_value_heads", JsonFields::kMostUnits, config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.fail("num_key_value_heads", std::to_string(config.num_key_value_heads) +
                                           " does not divide \"num_attention_heads\" " +
                                           std::to_string(config.num_attention_heads));
  }
  if (fields.find("head_dim") == nullptr && config.hidden_size % config.num_attention_heads != 0) {
    fields.fail("num_attention_heads",
                std::to_string(config.num_attention_heads) + " does not divide \"hidden_size\" " +
                    std::to_string(config.hidden_size) + ", and there is no \"head_dim\"");
  }
  config.head_dim = fields.count("head_dim", JsonFields::kMostUnits,
                                 config.hidden_size / config.num_attention_heads);
  if (config.head_dim % 2 != 0) {
    fields.fail("head_dim",
                std::to_string(config.head_dim) + " is odd; rotary positions pair them");
  }
  if (config.head_dim > JsonFields::kMostUnits / config.num_attention_heads) {
    fields.fail("num_attention_heads",
                "times \"head_dim\" is beyond " + std::to_string(JsonFields::kMostUnits));
  }
  config.vocab_size = fields.count("vocab_size", JsonFields::kMostUnits);
  config.max_position_embeddings = fields.count("max_position_embeddings", JsonFields::kMostUnits,
                                                config.max_position_embeddings);
  config.rms_norm_eps = fields.number("rms_norm_eps", 0, config.rms_norm_eps);
  config.initializer_range = fields.number("initializer_range", 0, config.initializer_range);
  config.tie_word_embeddings = fields.flag("tie_word_embeddings", config.tie_word_embeddings);
  config.rope = read_rope(fields);
  return config;
}

}  // namespace llm::io
