// Phi-3, Phi-3.5 and Phi-4: Llama whose projections of q, k and v are one tensor, and gate and up
// another. Rotary positions may take a part of each head, and two lists of factors for texts up to
// the original context and beyond it.  Paper: arXiv:2404.14219.

#include "llm/families/family.h"
#include "llm/families/fixed_fields.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"

namespace llm::families {
namespace {

model::DecoderConfig parse_phi3(const JsonFields& fields) {
  refuse_other_layers(fields, {"Phi3ForCausalLM"});
  fields.note_dropout({"embd_pdrop", "resid_pdrop"});
  refuse_unless(fields, {{"full_attn_mod", 1}, {"interpolate_factor", 1}, {"lm_head_bias", false}});
  // At the top level the original context is there to be read, whatever the kind of positions.
  const int64_t original =
      fields.count("original_max_position_embeddings", JsonFields::kMostUnits, /*fallback=*/4'096);
  model::DecoderConfig config = read_shape(fields, {.context_length = 4'096,
                                                    .norm_epsilon = 1e-5,
                                                    .has_partial_rotary = true,
                                                    .original_context_length = original,
                                                    .yarn_is_longrope = true});
  read_windows(fields, {.missing = 0, .has_window = [](int64_t /*layer*/) { return true; }},
               config);
  config.fused_projections = true;
  return config;
}

model::CausalLm build_phi3(const model::DecoderConfig& config) {
  return build_llama_like("phi3", config);
}

}  // namespace

const Family& phi3_family();  // families.cpp names it

const Family& phi3_family() {
  static const Family family = {.model_type = "phi3",
                                .parse = &parse_phi3,
                                .build = &build_phi3,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

}  // namespace llm::families
