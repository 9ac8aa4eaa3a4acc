// OLMo 2: Llama, but the norms of a layer are of what attention and MLP return, and all heads of
// queries, and of keys, have a norm together.  Paper: arXiv:2501.00656.

#include "llm/families/family.h"
#include "llm/families/llama_like.h"

namespace llm::families {
namespace {

model::DecoderConfig parse_olmo2(const JsonFields& fields) {
  refuse_other_layers(fields, {"Olmo2ForCausalLM"});
  refuse_windows(fields, /*has_window=*/false);
  model::DecoderConfig config = read_shape(fields, {.norm_epsilon = 1e-5});
  config.norm_placement = model::NormPlacement::After;
  config.norm_gain = sherd::ops::RmsGain::Wide;
  config.head_norm = model::HeadNorm::Whole;
  return config;
}

model::CausalLm build_olmo2(const model::DecoderConfig& config) {
  return build_llama_like("olmo2", config);
}

}  // namespace

const Family& olmo2_family();  // families.cpp names it

const Family& olmo2_family() {
  static const Family family = {.model_type = "olmo2",
                                .parse = &parse_olmo2,
                                .build = &build_olmo2,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

}  // namespace llm::families
