// OLMo 2 and OLMo 3: Llama, but the norms of a layer are of what attention and MLP return, and all
// heads of queries, and of keys, have a norm together. In OLMo 3 three of four layers see a window,
// and rotary positions scale in the others only.  Sources: arXiv:2501.00656; the `olmo3` model of
// transformers.

#include "llm/families/family.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"

namespace llm::families {
namespace {

model::DecoderConfig read_olmo(const JsonFields& fields, const char* architecture,
                               const ShapeDefaults& defaults) {
  refuse_other_layers(fields, {architecture});
  model::DecoderConfig config = read_shape(fields, defaults);
  config.norm_placement = model::NormPlacement::After;
  config.norm_gain = sherd::ops::RmsGain::Wide;
  config.head_norm = model::HeadNorm::Whole;
  return config;
}

model::DecoderConfig parse_olmo2(const JsonFields& fields) {
  refuse_windows(fields);
  return read_olmo(fields, "Olmo2ForCausalLM", {.norm_epsilon = 1e-5});
}

model::DecoderConfig parse_olmo3(const JsonFields& fields) {
  constexpr double kTheta = 500'000;
  model::DecoderConfig config = read_olmo(
      fields, "Olmo3ForCausalLM",
      {.norm_epsilon = 1e-5, .rope_theta = kTheta, .window_rope = WindowRope{.theta = kTheta}});
  read_windows(fields,
               {.missing = 4'096, .has_window = [](int64_t layer) { return (layer + 1) % 4 != 0; }},
               config);
  return config;
}

model::CausalLm build_olmo2(const model::DecoderConfig& config) {
  return build_llama_like("olmo2", config);
}

model::CausalLm build_olmo3(const model::DecoderConfig& config) {
  return build_llama_like("olmo3", config);
}

}  // namespace

const Family& olmo2_family();  // families.cpp names them
const Family& olmo3_family();

const Family& olmo2_family() {
  static const Family family = {.model_type = "olmo2",
                                .parse = &parse_olmo2,
                                .build = &build_olmo2,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

const Family& olmo3_family() {
  static const Family family = {.model_type = "olmo3",
                                .parse = &parse_olmo3,
                                .build = &build_olmo3,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

}  // namespace llm::families
