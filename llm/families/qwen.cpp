// Qwen2, Qwen2.5 and Qwen3, dense: Llama with biases of q, k and v, or with norms of each head.
// Papers: arXiv:2407.10671, arXiv:2505.09388.

#include <limits>

#include "llm/families/family.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"

namespace llm::families {
namespace {

// Layers from `max_window_layers` on see a window, where `use_sliding_window` says so.
void read_qwen_windows(const JsonFields& fields, model::DecoderConfig& config) {
  const auto* none = fields.find("max_window_layers");
  const bool is_zero = none != nullptr && *none == 0;
  const int64_t first =
      is_zero ? 0 : fields.count("max_window_layers", JsonFields::kMostUnits, /*fallback=*/28);
  const bool uses = fields.flag("use_sliding_window", false);
  read_windows(
      fields,
      {.missing = 4'096, .has_window = [&](int64_t layer) { return uses && layer >= first; }},
      config);
  if (!uses && !config.layers_with_window.empty()) {
    fields.fail("layer_types", fields.find("layer_types")->dump() +
                                   " has layers with a window, but \"use_sliding_window\" is not "
                                   "true. Make them agree");
  }
}

model::DecoderConfig parse_qwen2(const JsonFields& fields) {
  refuse_other_layers(fields, {"Qwen2ForCausalLM"});
  model::DecoderConfig config = read_shape(fields, {.context_length = 32'768});
  read_qwen_windows(fields, config);
  config.query_key_value_bias = true;
  return config;
}

model::DecoderConfig parse_qwen3(const JsonFields& fields) {
  refuse_other_layers(fields, {"Qwen3ForCausalLM"});
  model::DecoderConfig config = read_shape(fields, {.head_size = 128, .context_length = 32'768});
  read_qwen_windows(fields, config);
  config.head_norm = model::HeadNorm::PerHead;
  return config;
}

model::CausalLm build_qwen2(const model::DecoderConfig& config) {
  return build_llama_like("qwen2", config);
}

model::CausalLm build_qwen3(const model::DecoderConfig& config) {
  return build_llama_like("qwen3", config);
}

}  // namespace

const Family& qwen2_family();  // families.cpp names them
const Family& qwen3_family();

const Family& qwen2_family() {
  static const Family family = {.model_type = "qwen2",
                                .parse = &parse_qwen2,
                                .build = &build_qwen2,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

const Family& qwen3_family() {
  static const Family family = {.model_type = "qwen3",
                                .parse = &parse_qwen3,
                                .build = &build_qwen3,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {}};
  return family;
}

}  // namespace llm::families
