// Mistral: Llama with a window of attention in every layer (0.1), or without one (0.3, Nemo,
// Small). Paper: arXiv:2310.06825.

#include "llm/families/family.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"

namespace llm::families {
namespace {

model::DecoderConfig parse_mistral(const JsonFields& fields) {
  refuse_other_layers(fields, {"MistralForCausalLM"});
  model::DecoderConfig config = read_shape(fields, {.context_length = 131'072});
  read_windows(fields, {.missing = 4'096, .has_window = [](int64_t /*layer*/) { return true; }},
               config);
  return config;
}

model::CausalLm build_mistral(const model::DecoderConfig& config) {
  return build_llama_like("mistral", config);
}

}  // namespace

const Family& mistral_family();  // families.cpp names it

const Family& mistral_family() {
  static const Family family = {.model_type = "mistral",
                                .parse = &parse_mistral,
                                .build = &build_mistral,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

}  // namespace llm::families
