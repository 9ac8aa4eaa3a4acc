// SmolLM3: Llama, but every fourth layer has no rotary positions.
// Source: huggingface.co/blog/smollm3; no positions in some layers: arXiv:2501.18795.

#include <set>

#include <fmt/core.h>

#include "llm/families/family.h"
#include "llm/families/fixed_fields.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"

namespace llm::families {
namespace {

// `no_rope_layers` has a 1 for each layer WITH rotary positions.
std::set<int64_t> layers_without_rope(const JsonFields& fields, int64_t layers) {
  const int64_t interval =
      fields.count("no_rope_layer_interval", JsonFields::kMostLayers, /*fallback=*/4);
  std::set<int64_t> without;
  const auto* marks = fields.find("no_rope_layers");
  if (marks == nullptr) {
    for (int64_t layer = interval - 1; layer < layers; layer += interval) {
      without.insert(layer);
    }
    return without;
  }
  if (!marks->is_array() || static_cast<int64_t>(marks->size()) != layers) {
    fields.fail("no_rope_layers",
                fmt::format("must be a list of {} numbers, one per layer, found {}", layers,
                            marks->dump()));
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto& mark = marks->at(static_cast<size_t>(layer));
    if (mark != 0 && mark != 1) {
      fields.fail("no_rope_layers", "must hold 0 and 1, found " + mark.dump());
    }
    if (mark == 0) {
      without.insert(layer);
    }
  }
  return without;
}

model::DecoderConfig parse_smollm3(const JsonFields& fields) {
  refuse_other_layers(fields, {"SmolLM3ForCausalLM"});
  refuse_unless(fields, {{"use_sliding_window", false}});
  model::DecoderConfig config = read_shape(
      fields, {.context_length = 32'768, .rope_theta = 2'000'000, .tied_embedding = true});
  refuse_windows(fields);
  config.layers_without_rope = layers_without_rope(fields, config.layers);
  return config;
}

model::CausalLm build_smollm3(const model::DecoderConfig& config) {
  return build_llama_like("smollm3", config);
}

}  // namespace

const Family& smollm3_family();  // families.cpp names it

const Family& smollm3_family() {
  static const Family family = {.model_type = "smollm3",
                                .parse = &parse_smollm3,
                                .build = &build_smollm3,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {"max_window_layers", "pretraining_tp"}};
  return family;
}

}  // namespace llm::families
