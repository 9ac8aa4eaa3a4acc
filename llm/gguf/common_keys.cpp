#include "llm/gguf/common_keys.h"

#include <cmath>
#include <iterator>
#include <variant>

#include <fmt/core.h>

namespace llm::gguf {
namespace {

// llama.cpp takes beta_fast 32, beta_slow 1, whole pairs, and a factor that follows from the other.
void write_yarn(const SourceModel& model, const model::YarnScaling& yarn, KeyWriter& keys) {
  const double usual = yarn.factor <= 1 ? 1 : 0.1 * std::log(yarn.factor) + 1;
  if (yarn.beta_fast != 32 || yarn.beta_slow != 1 || !yarn.truncate) {
    model.refuse(
        "rope_type \"yarn\" with other values of \"beta_fast\", \"beta_slow\" or "
        "\"truncate\" than 32, 1 and true");
  }
  if (std::abs(yarn.attention_factor - usual) > 1e-6) {
    model.refuse(
        fmt::format("rope_type \"yarn\" with \"attention_factor\" {}, where {:.6} follows "
                    "from \"factor\"",
                    yarn.attention_factor, usual));
  }
  keys.text("rope.scaling.type", "yarn");
  keys.number("rope.scaling.factor", yarn.factor);
  keys.whole("rope.scaling.original_context_length", yarn.original_context_tokens);
}

}  // namespace

std::vector<const char*> shape_keys(std::initializer_list<const char*> more) {
  std::vector<const char*> keys = {"block_count",
                                   "context_length",
                                   "embedding_length",
                                   "feed_forward_length",
                                   "attention.head_count",
                                   "attention.head_count_kv",
                                   "attention.layer_norm_rms_epsilon",
                                   "attention.key_length",
                                   "attention.value_length",
                                   "vocab_size",
                                   "rope.freq_base",
                                   "rope.dimension_count",
                                   "rope.scaling.type",
                                   "rope.scaling.factor",
                                   "rope.scaling.original_context_length",
                                   "rope.scaling.finetuned"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

void write_shape(const SourceModel& model, KeyWriter& keys, const char* epsilon) {
  const model::DecoderConfig& shape = model.shape;
  keys.whole("block_count", shape.layers);
  keys.whole("context_length", shape.context_length);
  keys.whole("embedding_length", shape.hidden_size);
  keys.whole("feed_forward_length", shape.feed_forward_size);
  keys.whole("attention.head_count", shape.heads);
  keys.whole("attention.head_count_kv", shape.key_heads);
  keys.number(epsilon, shape.norm_epsilon);
}

void write_head_sizes(const SourceModel& model, KeyWriter& keys) {
  keys.whole("attention.key_length", model.shape.head_size);
  keys.whole("attention.value_length", model.shape.head_size);
}

void write_rope(const SourceModel& model, bool has_factors, KeyWriter& keys) {
  const model::RopeConfig rope = model.shape.rope.value_or(model::RopeConfig{});
  keys.number("rope.freq_base", rope.theta);
  if (const auto* linear = std::get_if<model::LinearScaling>(&rope.scaling)) {
    keys.text("rope.scaling.type", "linear");
    keys.number("rope.scaling.factor", linear->factor);
  } else if (const auto* yarn = std::get_if<model::YarnScaling>(&rope.scaling)) {
    write_yarn(model, *yarn, keys);
  } else if (std::holds_alternative<model::LongRopeScaling>(rope.scaling) ||
             (std::holds_alternative<model::Llama3Scaling>(rope.scaling) && !has_factors)) {
    refuse_rope(model, rope);
  }
}

void refuse_rope(const SourceModel& model, const model::RopeConfig& rope) {
  static constexpr const char* kTypes[] = {"default", "linear", "llama3", "yarn", "longrope"};
  static_assert(std::size(kTypes) == std::variant_size_v<model::RopeScaling>);
  model.refuse(fmt::format("rope_type \"{}\" in a model of type \"{}\"",
                           kTypes[rope.scaling.index()], model.model_type));
}

void refuse_layers_without_rope(const SourceModel& model) {
  if (!model.shape.layers_without_rope.empty()) {
    model.refuse("layers without rotary positions");
  }
}

void refuse_windows(const SourceModel& model) {
  const model::DecoderConfig& shape = model.shape;
  if (!shape.layers_with_window.empty() && shape.window < shape.context_length) {
    model.refuse(fmt::format(
        "\"sliding_window\" {} below \"max_position_embeddings\" {} in a model of type \"{}\"",
        shape.window, shape.context_length, model.model_type));
  }
}

void read_shape(const KeyReader& keys, nlohmann::ordered_json& config) {
  const std::int64_t heads = keys.whole("attention.head_count");
  const std::int64_t width = keys.whole("embedding_length");
  const std::int64_t head_size = keys.whole("attention.key_length", width / heads);
  if (keys.whole("attention.value_length", head_size) != head_size) {
    keys.refuse("attention.value_length", "is not \"attention.key_length\": not implemented");
  }
  config["hidden_size"] = width;
  config["intermediate_size"] = keys.whole("feed_forward_length");
  config["num_hidden_layers"] = keys.whole("block_count");
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = keys.whole("attention.head_count_kv", heads);
  config["head_dim"] = head_size;
  config["max_position_embeddings"] = keys.whole("context_length");
  config["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon");
}

void read_rope(const KeyReader& keys, nlohmann::ordered_json& config) {
  const std::int64_t head_size = config.at("head_dim");
  if (keys.whole("rope.dimension_count", head_size) != head_size) {
    keys.refuse("rope.dimension_count",
                fmt::format("is not the size of a head, {}: not implemented", head_size));
  }
  config["rope_theta"] = keys.number("rope.freq_base", 10'000);
  const std::string type = keys.text("rope.scaling.type").value_or("none");
  if (type == "none") {
    config["rope_scaling"] = nullptr;
  } else if (type == "linear") {
    config["rope_scaling"] = {{"rope_type", type}, {"factor", keys.number("rope.scaling.factor")}};
  } else if (type == "yarn") {
    config["rope_scaling"] = {
        {"rope_type", type},
        {"factor", keys.number("rope.scaling.factor")},
        {"original_max_position_embeddings", keys.whole("rope.scaling.original_context_length")}};
  } else {
    keys.refuse("rope.scaling.type", "is \"" + type + "\", only none, linear and yarn are read");
  }
}

}  // namespace llm::gguf
