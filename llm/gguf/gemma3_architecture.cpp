// Gemma 3 (text) in llama.cpp.

#include <algorithm>
#include <variant>

#include <fmt/core.h>

#include "llm/gguf/common_keys.h"

namespace llm::gguf {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLayersOf27B = 62;  // llama.cpp knows that size by them

// Every so many layers one attends to the whole text. Refuses layers that have no such order.
std::int64_t full_layers_interval(const SourceModel& model) {
  const Json types = model.config.value("layer_types", Json());
  if (!types.is_array()) {
    const Json pattern = model.config.value("sliding_window_pattern", Json());
    return pattern.is_number_integer() ? pattern.get<std::int64_t>() : 6;
  }
  const auto first = std::find(types.begin(), types.end(), "full_attention");
  const auto interval = std::distance(types.begin(), first) + 1;
  for (std::ptrdiff_t layer = 0; layer < std::ssize(types); ++layer) {
    const bool is_full = types[static_cast<std::size_t>(layer)] == "full_attention";
    if (is_full != ((layer + 1) % interval == 0)) {
      model.refuse("\"layer_types\" " + types.dump() +
                   ", where \"full_attention\" does not come every so many layers");
    }
  }
  return interval;
}

// Layers with a window have a base of their own, and no scaling.
void write_gemma_rope(const SourceModel& model, KeyWriter& keys) {
  const model::RopeConfig rope = model.shape.rope.value_or(model::RopeConfig{});
  const model::RopeConfig of_windows = model.shape.window_rope.value_or(rope);
  if (const auto* linear = std::get_if<model::LinearScaling>(&rope.scaling)) {
    keys.text("rope.scaling.type", "linear");
    keys.number("rope.scaling.factor", linear->factor);
  } else if (!std::holds_alternative<std::monostate>(rope.scaling)) {
    refuse_rope(model, rope);
  }
  if (!std::holds_alternative<std::monostate>(of_windows.scaling)) {
    refuse_rope(model, of_windows);
  }
  keys.number("rope.freq_base", rope.theta);
  keys.number("rope.freq_base_swa", of_windows.theta);
}

// There is no key for it.
void check_score_scale(const SourceModel& model) {
  const model::DecoderConfig& shape = model.shape;
  const double scalar = model.config.value("query_pre_attn_scalar", 256.0);
  const double taken = shape.layers == kLayersOf27B
                           ? static_cast<double>(shape.hidden_size / shape.heads)
                           : static_cast<double>(shape.head_size);
  if (scalar != taken) {
    model.refuse(
        fmt::format("\"query_pre_attn_scalar\" {}, where llama.cpp takes {}", scalar, taken));
  }
}

void write_gemma3(const SourceModel& model, KeyWriter& keys) {
  check_score_scale(model);
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (const Json cap = model.config.value(field, Json()); !cap.is_null()) {
      model.refuse(std::string("\"") + field + "\" " + cap.dump());
    }
  }
  const std::int64_t interval = full_layers_interval(model);
  write_shape(model, keys);
  write_gemma_rope(model, keys);
  write_head_sizes(model, keys);
  keys.whole("attention.sliding_window", model.config.value("sliding_window", std::int64_t{4'096}));
  keys.whole("attention.sliding_window_pattern", interval);
}

void read_gemma3(const KeyReader& keys, Json& config) {
  read_shape(keys, config);
  read_rope(keys, config);
  const std::int64_t layers = config.at("num_hidden_layers");
  const std::int64_t interval = keys.whole("attention.sliding_window_pattern", 6);
  if (layers > 4'096) {
    keys.refuse("block_count", fmt::format("{} is beyond 4096", layers));
  }
  Json types = Json::array();
  for (std::int64_t layer = 1; layer <= layers; ++layer) {
    types.push_back(layer % interval == 0 ? "full_attention" : "sliding_attention");
  }
  config["layer_types"] = std::move(types);
  config["rope_theta"] = keys.number("rope.freq_base", 1'000'000);
  config["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10'000);
  config["sliding_window"] = keys.whole("attention.sliding_window");
  config["query_pre_attn_scalar"] = layers == kLayersOf27B
                                        ? config.at("hidden_size").get<std::int64_t>() /
                                              config.at("num_attention_heads").get<std::int64_t>()
                                        : config.at("head_dim").get<std::int64_t>();
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["attention_bias"] = false;
}

}  // namespace

const Architecture& gemma3_architecture();  // architecture.cpp names it

const Architecture& gemma3_architecture() {
  static const Architecture gemma3 = {
      .name = "gemma3",
      .model_types = {"gemma3_text"},
      .model_class = "Gemma3ForCausalLM",
      .tensors = {{"token_embd", "model.embed_tokens"},
                  {"output_norm", "model.norm", Change::PlusOne},
                  {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", Change::PlusOne},
                  {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"},
                  {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"},
                  {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
                  {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm", Change::PlusOne},
                  {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm", Change::PlusOne},
                  {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
                  {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm",
                   Change::PlusOne},
                  {"blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm", Change::PlusOne},
                  {"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
                  {"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
                  {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
                  {"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm",
                   Change::PlusOne}},
      .keys = shape_keys(
          {"rope.freq_base_swa", "attention.sliding_window", "attention.sliding_window_pattern"}),
      .write_keys = &write_gemma3,
      .read_keys = &read_gemma3};
  return gemma3;
}

}  // namespace llm::gguf
