#include "llm/io/bloom_config.h"

#include <cstdint>
#include <string>

#include "llm/io/fixed_fields.h"

namespace llm::io {
namespace {

using Json = nlohmann::ordered_json;

// The feed-forward part is 4 × as wide as the model; transformers never reads another width.
void check_inner_width(const JsonFields& fields, const model::BloomConfig& config) {
  const Json* found = fields.find("n_inner");
  if (found != nullptr && *found != 4 * config.hidden_size) {
    fields.fail("n_inner", found->dump() + " is not implemented, only null or " +
                               std::to_string(4 * config.hidden_size) + ", four times the width");
  }
}

// What is left out here, such as `slow_but_exact`, `pretraining_tp` and `offset_alibi`, does not
// change what transformers computes.
void refuse_what_is_not_implemented(const JsonFields& fields, const model::BloomConfig& config) {
  refuse_other_computations(fields);
  refuse_unless(fields, {{"hidden_dropout", 0.0}, {"attention_dropout", 0.0}});
  check_inner_width(fields, config);
  if (config.tie_word_embeddings) {
    // Checkpoints of the base model: its embedding is all that the head needs.
    refuse_other_architectures(fields, {"BloomForCausalLM", "BloomModel"});
  } else {
    refuse_other_architectures(fields, {"BloomForCausalLM"});
  }
}

}  // namespace

model::BloomConfig read_bloom_config(const JsonFields& fields) {
  const char* width = fields.spelling({"hidden_size", "n_embed"});
  const char* heads = fields.spelling({"n_head", "num_attention_heads"});
  const char* layers = fields.spelling({"n_layer", "num_hidden_layers"});
  model::BloomConfig config;
  config.hidden_size = fields.count(width, JsonFields::kMostUnits / 4);
  config.n_head = fields.count(heads, JsonFields::kMostUnits);
  if (config.hidden_size % config.n_head != 0) {
    fields.fail(heads, std::to_string(config.n_head) + " does not divide \"" + width + "\" " +
                           std::to_string(config.hidden_size));
  }
  config.n_layer = fields.count(layers, JsonFields::kMostLayers);
  config.vocab_size = fields.count("vocab_size", JsonFields::kMostUnits);
  config.seq_length = fields.count("seq_length", JsonFields::kMostUnits, config.seq_length);
  config.layer_norm_epsilon = fields.number("layer_norm_epsilon", 0, config.layer_norm_epsilon);
  config.initializer_range = fields.number("initializer_range", 0, config.initializer_range);
  config.tie_word_embeddings = fields.flag("tie_word_embeddings", config.tie_word_embeddings);
  config.apply_residual_connection_post_layernorm = fields.flag(
      "apply_residual_connection_post_layernorm", config.apply_residual_connection_post_layernorm);
  refuse_what_is_not_implemented(fields, config);
  return config;
}

}  // namespace llm::io
