// Gemma 2 and Gemma 3 (text). Their norms count weights from 1 and stand before and after each
// part, GELU gates the feed-forward part, token vectors are multiplied by √D, and some layers see a
// window. Papers: arXiv:2408.00118, arXiv:2503.19786.

#include <cmath>
#include <optional>

#include "llm/families/family.h"
#include "llm/families/fixed_fields.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"

namespace llm::families {
namespace {

constexpr const char* kGelu = "gelu_pytorch_tanh";

// A soft cap; null is none.
std::optional<double> read_cap(const JsonFields& fields, const char* name,
                               std::optional<double> missing) {
  if (fields.find(name) != nullptr) {
    return fields.number(name, 0);
  }
  return fields.object().contains(name) ? std::nullopt : missing;
}

model::DecoderConfig read_gemma(const JsonFields& fields, const char* architecture,
                                const ShapeDefaults& defaults) {
  refuse_other_attention(fields, {architecture});
  refuse_unless(fields, {{"hidden_act", kGelu},
                         {"hidden_activation", kGelu},
                         {"use_bidirectional_attention", false}});
  model::DecoderConfig config = read_shape(fields, defaults);
  config.score_scale = 1 / std::sqrt(fields.number("query_pre_attn_scalar", 0, 256));
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.rounds_embedding_scale = true;
  config.norm_placement = model::NormPlacement::Around;
  config.norm_gain = sherd::ops::RmsGain::OnePlus;
  config.gelu_gate = true;
  return config;
}

model::DecoderConfig parse_gemma2(const JsonFields& fields) {
  model::DecoderConfig config =
      read_gemma(fields, "Gemma2ForCausalLM",
                 {.head_size = 256, .context_length = 8'192, .tied_embedding = true});
  config.score_cap = read_cap(fields, "attn_logit_softcapping", 50).value_or(0);
  config.logits.cap = read_cap(fields, "final_logit_softcapping", 30);
  read_windows(fields,
               {.missing = 4'096, .has_window = [](int64_t layer) { return layer % 2 == 0; }},
               config);
  return config;
}

model::DecoderConfig parse_gemma3(const JsonFields& fields) {
  model::DecoderConfig config = read_gemma(
      fields, "Gemma3ForCausalLM",
      {.head_size = 256,
       .context_length = 131'072,
       .rope_theta = 1'000'000,
       .tied_embedding = true,
       .window_rope = WindowRope{.theta = 10'000, .theta_field = "rope_local_base_freq"}});
  config.head_norm = model::HeadNorm::PerHead;
  // Scores have no cap here, whatever `attn_logit_softcapping` says.
  config.logits.cap = read_cap(fields, "final_logit_softcapping", std::nullopt);
  const int64_t pattern =
      fields.count("sliding_window_pattern", JsonFields::kMostLayers, /*fallback=*/6);
  read_windows(
      fields,
      {.missing = 4'096, .has_window = [&](int64_t layer) { return (layer + 1) % pattern != 0; }},
      config);
  return config;
}

model::CausalLm build_gemma2(const model::DecoderConfig& config) {
  return build_llama_like("gemma2", config);
}

model::CausalLm build_gemma3(const model::DecoderConfig& config) {
  return build_llama_like("gemma3_text", config);
}

}  // namespace

const Family& gemma2_family();  // families.cpp names them
const Family& gemma3_family();

const Family& gemma2_family() {
  static const Family family = {.model_type = "gemma2",
                                .parse = &parse_gemma2,
                                .build = &build_gemma2,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {"cache_implementation"}};
  return family;
}

const Family& gemma3_family() {
  static const Family family = {
      .model_type = "gemma3_text",
      .parse = &parse_gemma3,
      .build = &build_gemma3,
      .tensors = {.derived = {"rotary_emb.inv_freq"}},
      // `layer_types` decides where the pattern with a dash stands.
      .harmless_fields = {"cache_implementation", "attn_logit_softcapping",
                          "_sliding_window_pattern"}};
  return family;
}

}  // namespace llm::families
