// Llama, Mistral, Qwen2, Qwen3 and Phi-3 in llama.cpp.

#include <cmath>
#include <utility>
#include <variant>

#include "llm/gguf/common_keys.h"

namespace llm::gguf {
namespace {

using Json = nlohmann::ordered_json;

// `rows`: whether rows of q and k change places.
std::vector<TensorName> llama_tensors(bool rows, std::vector<TensorName> more = {}) {
  std::vector<TensorName> names = {
      {"token_embd", "model.embed_tokens"},
      {"output_norm", "model.norm"},
      {"output", "lm_head"},
      {"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
      {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj",
       rows ? Change::QueryRows : Change::None},
      {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", rows ? Change::KeyRows : Change::None},
      {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
      {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
      {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
      {"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
      {"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
      {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"}};
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

void write_llama(const SourceModel& model, KeyWriter& keys) {
  refuse_layers_without_rope(model);
  refuse_windows(model);
  write_shape(model, keys);
  write_rope(model, /*has_factors=*/true, keys);
  write_head_sizes(model, keys);
  keys.whole("vocab_size", model.shape.vocab_size);
  keys.whole("rope.dimension_count", model.shape.head_size);
}

void write_qwen(const SourceModel& model, KeyWriter& keys) {
  refuse_layers_without_rope(model);
  refuse_windows(model);
  write_shape(model, keys);
  write_rope(model, /*has_factors=*/false, keys);
  write_head_sizes(model, keys);
}

void read_llama(const KeyReader& keys, Json& config) {
  read_shape(keys, config);
  read_rope(keys, config);
  config["hidden_act"] = "silu";
  config["attention_bias"] = false;
  config["mlp_bias"] = false;
}

void read_qwen(const KeyReader& keys, Json& config) {
  read_shape(keys, config);
  read_rope(keys, config);
  config["hidden_act"] = "silu";
  config["use_sliding_window"] = false;
}

// Long rotary positions: factors for texts within the original context and beyond it, which are
// tensors, and one for cos and sin, which follows from both contexts.
void write_long_rope(const SourceModel& model, const model::LongRopeScaling& scaling,
                     KeyWriter& keys) {
  const auto original = static_cast<double>(scaling.original_context_tokens);
  const double longer = static_cast<double>(model.shape.context_length) / original;
  const double usual = longer <= 1 ? 1 : std::sqrt(1 + std::log(longer) / std::log(original));
  if (std::abs(scaling.attention_factor - usual) > 1e-6) {
    model.refuse(
        "rope_type \"longrope\" with \"factor\" or \"attention_factor\" other than what "
        "follows from both contexts");
  }
  keys.number("rope.scaling.attn_factor", usual);
}

void write_phi3(const SourceModel& model, KeyWriter& keys) {
  const model::RopeConfig rope = model.shape.rope.value_or(model::RopeConfig{});
  const auto* longer = std::get_if<model::LongRopeScaling>(&rope.scaling);
  if (longer == nullptr && !std::holds_alternative<std::monostate>(rope.scaling)) {
    refuse_rope(model, rope);
  }
  refuse_windows(model);
  write_shape(model, keys);
  keys.whole("rope.scaling.original_context_length",
             longer != nullptr ? longer->original_context_tokens
                               : model.config.value("original_max_position_embeddings",
                                                    model.shape.context_length));
  keys.whole("rope.dimension_count", rope.rotated_size(model.shape.head_size));
  keys.number("rope.freq_base", rope.theta);
  if (longer != nullptr) {
    write_long_rope(model, *longer, keys);
  }
}

void read_phi3(const KeyReader& keys, Json& config) {
  read_shape(keys, config);
  const std::int64_t head_size = config.at("head_dim");
  const std::int64_t turned = keys.whole("rope.dimension_count", head_size);
  if (turned != head_size) {
    config["partial_rotary_factor"] = static_cast<double>(turned) / static_cast<double>(head_size);
  }
  if (const auto type = keys.text("rope.scaling.type"); type && *type != "none") {
    keys.refuse("rope.scaling.type", "is \"" + *type + "\", which is not read with phi3");
  }
  config["rope_theta"] = keys.number("rope.freq_base", 10'000);
  config["rope_scaling"] = nullptr;
  // llama.cpp has the key, and attends to the whole text.
  const std::int64_t window =
      keys.file().whole("phi3.attention.sliding_window").value_or(0);  // 0: none
  config["sliding_window"] = window == 0 ? Json() : Json(window);
  config.erase("head_dim");
  config["original_max_position_embeddings"] =
      keys.whole("rope.scaling.original_context_length", keys.whole("context_length"));
  config["hidden_act"] = "silu";
}

}  // namespace

const Architecture& llama_architecture();  // architecture.cpp names them
const Architecture& qwen2_architecture();
const Architecture& qwen3_architecture();
const Architecture& phi3_architecture();

const Architecture& llama_architecture() {
  static const Architecture llama = {.name = "llama",
                                     .model_types = {"llama", "mistral"},
                                     .model_class = "LlamaForCausalLM",
                                     .tensors = llama_tensors(/*rows=*/true),
                                     .keys = shape_keys(),
                                     .write_keys = &write_llama,
                                     .read_keys = &read_llama};
  return llama;
}

const Architecture& qwen2_architecture() {
  static const Architecture qwen2 = {.name = "qwen2",
                                     .model_types = {"qwen2"},
                                     .model_class = "Qwen2ForCausalLM",
                                     .tensors = llama_tensors(/*rows=*/false),
                                     .keys = shape_keys(),
                                     .write_keys = &write_qwen,
                                     .read_keys = &read_qwen};
  return qwen2;
}

const Architecture& qwen3_architecture() {
  static const Architecture qwen3 = {
      .name = "qwen3",
      .model_types = {"qwen3"},
      .model_class = "Qwen3ForCausalLM",
      .tensors = llama_tensors(/*rows=*/false,
                               {{"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"},
                                {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"}}),
      .keys = shape_keys(),
      .write_keys = &write_qwen,
      .read_keys = &read_qwen};
  return qwen3;
}

const Architecture& phi3_architecture() {
  static const Architecture phi3 = {
      .name = "phi3",
      .model_types = {"phi3"},
      .model_class = "Phi3ForCausalLM",
      .tensors = {{"token_embd", "model.embed_tokens"},
                  {"output_norm", "model.norm"},
                  {"output", "lm_head"},
                  {"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
                  {"blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj"},
                  {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
                  {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
                  {"blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"},
                  {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"}},
      .keys = shape_keys({"attention.sliding_window"}),
      .write_keys = &write_phi3,
      .read_keys = &read_phi3};
  return phi3;
}

}  // namespace llm::gguf
