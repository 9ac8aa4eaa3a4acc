// Granite 3, dense: Llama with four multipliers, of token vectors, of what a layer's parts add, of
// scores and of logits.  Source: the `granite` model of transformers.

#include "llm/families/family.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"

namespace llm::families {
namespace {

model::DecoderConfig parse_granite(const JsonFields& fields) {
  refuse_other_layers(fields, {"GraniteForCausalLM"});
  refuse_windows(fields);
  model::DecoderConfig config = read_shape(fields, {});
  config.embedding_scale = fields.number("embedding_multiplier", 0, 1);
  config.residual_scale = fields.number("residual_multiplier", 0, 1);
  config.score_scale = fields.number("attention_multiplier", 0, 1);
  config.logits.divisor = fields.number("logits_scaling", 0, 1);
  return config;
}

model::CausalLm build_granite(const model::DecoderConfig& config) {
  return build_llama_like("granite", config);
}

}  // namespace

const Family& granite_family();  // families.cpp names it

const Family& granite_family() {
  static const Family family = {.model_type = "granite",
                                .parse = &parse_granite,
                                .build = &build_granite,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

}  // namespace llm::families
