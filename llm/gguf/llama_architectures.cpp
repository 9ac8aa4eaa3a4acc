// Llama, Mistral, Qwen2, Qwen3 and Phi-3 in llama.cpp.

#include <cmath>
#include <utility>
#include <variant>

#include <ATen/TensorOperators.h>
#include <fmt/core.h>

#include "llm/gguf/common_keys.h"
#include "llm/model/rope.h"

namespace llm::gguf {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRopeFactors = "rope_freqs.weight";
constexpr const char* kLongFactors = "rope_factors_long.weight";
constexpr const char* kShortFactors = "rope_factors_short.weight";

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

// The llama3 scaling with these factors: the settings that published models have, and any power of
// two as the original context.
Json scaling_of_factors(const GgufFile& file, const at::Tensor& factors, double theta) {
  const std::int64_t head_size = 2 * factors.numel();
  const at::Tensor unscaled = model::rope_frequencies({.theta = theta}, head_size);
  const double factor = factors.max().item<double>();
  for (std::int64_t context = 1; context <= std::int64_t{1} << 24; context *= 2) {
    const model::RopeConfig rope{
        .theta = theta,
        .scaling = model::Llama3Scaling{.factor = factor, .original_context_tokens = context}};
    const at::Tensor made = unscaled / model::rope_frequencies(rope, head_size);
    if (((made - factors).abs() <= 1e-5 * factors).all().item<bool>()) {
      return {{"rope_type", "llama3"},
              {"factor", factor},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position_embeddings", context}};
    }
  }
  file.refuse(
      fmt::format("tensor \"{}\" is not what rope_type \"llama3\" makes of low_freq_factor 1 "
                  "and high_freq_factor 4",
                  kRopeFactors));
}

void read_llama(const KeyReader& keys, Json& config) {
  read_shape(keys, config);
  read_rope(keys, config);
  if (const TensorInfo* factors = keys.file().find_tensor(kRopeFactors)) {
    if (factors->numel() * 2 != config.value("head_dim", std::int64_t{0})) {
      keys.file().refuse(
          fmt::format("tensor \"{}\" has {} numbers, expected half the size of a head",
                      kRopeFactors, factors->numel()));
    }
    config["rope_scaling"] = scaling_of_factors(keys.file(), keys.file().read(*factors),
                                                config.at("rope_theta").get<double>());
  }
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
double long_rope_factor(std::int64_t context, std::int64_t original_context) {
  const auto original = static_cast<double>(original_context);
  const double longer = static_cast<double>(context) / original;
  return longer <= 1 ? 1 : std::sqrt(1 + std::log(longer) / std::log(original));
}

void write_long_rope(const SourceModel& model, const model::LongRopeScaling& scaling,
                     KeyWriter& keys) {
  const double usual =
      long_rope_factor(model.shape.context_length, scaling.original_context_tokens);
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

// Null where the file has no factors.
Json long_rope_scaling(const KeyReader& keys) {
  const GgufFile& file = keys.file();
  const TensorInfo *longer = file.find_tensor(kLongFactors),
                   *shorter = file.find_tensor(kShortFactors);
  const double factor = keys.number("rope.scaling.attn_factor", 1);
  if ((longer == nullptr) != (shorter == nullptr)) {
    file.refuse(fmt::format("tensor \"{}\" is there without \"{}\"",
                            longer != nullptr ? kLongFactors : kShortFactors,
                            longer != nullptr ? kShortFactors : kLongFactors));
  }
  const double usual = longer == nullptr
                           ? 1
                           : long_rope_factor(keys.whole("context_length"),
                                              keys.whole("rope.scaling.original_context_length"));
  if (std::abs(factor - usual) > 1e-5) {
    keys.refuse("rope.scaling.attn_factor",
                fmt::format("is {:.7}, where {:.7} follows from both context lengths: not "
                            "implemented",
                            factor, usual));
  }
  return longer == nullptr ? Json()
                           : Json{{"type", "longrope"},
                                  {"short_factor", file.decimals(*shorter)},
                                  {"long_factor", file.decimals(*longer)}};
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
  config["rope_scaling"] = long_rope_scaling(keys);
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
                                     .rope_tensors = {kRopeFactors},
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
      .keys = shape_keys({"attention.sliding_window", "rope.scaling.attn_factor"}),
      .rope_tensors = {kLongFactors, kShortFactors},
      .write_keys = &write_phi3,
      .read_keys = &read_phi3};
  return phi3;
}

}  // namespace llm::gguf
