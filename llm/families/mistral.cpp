// Mistral without a window (0.3, Nemo, Small): Llama. With a window (0.1) it is refused.
// Paper: arXiv:2310.06825.

#include "llm/families/family.h"
#include "llm/families/llama_like.h"

namespace llm::families {
namespace {

model::DecoderConfig parse_mistral(const JsonFields& fields) {
  refuse_other_layers(fields, {"MistralForCausalLM"});
  model::DecoderConfig config = read_shape(fields, {.context_length = 131'072});
  // A file without the field means a window of 4096.
  const bool is_null =
      fields.object().contains("sliding_window") && fields.object()["sliding_window"].is_null();
  refuse_windows(fields, !is_null && fields.find("layer_types") == nullptr);
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
