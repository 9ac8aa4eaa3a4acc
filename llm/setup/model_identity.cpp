#include "llm/setup/model_identity.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "files/sha256.h"

namespace llm::setup {

namespace {

constexpr std::int64_t kSmallTensor = 8'192;   // elements: such a tensor is read whole
constexpr std::int64_t kSampledBlock = 2'048;  // elements
constexpr std::int64_t kBlocksPerTensor = 4;
constexpr std::size_t kDigitsOfSample = 24;  // of a digest: no collision by mistake

template <class... Values>
void add_rope_kind(Settings& values, const char* kind,
                   const std::pair<const char*, Values>&... fields) {
  values.emplace_back("config.json: rope_type", kind);
  (values.emplace_back(std::string("config.json: rope ") + fields.first,
                       fmt::format("{}", fields.second)),
   ...);
}

void add_scaling(Settings& values, std::monostate /*none*/) {
  add_rope_kind(values, "default");
}

void add_scaling(Settings& values, const model::LinearScaling& scaling) {
  add_rope_kind(values, "linear", std::pair("factor", scaling.factor));
}

// The structured bindings of these fail to compile when a field is added: name it then.
void add_scaling(Settings& values, const model::Llama3Scaling& scaling) {
  const auto& [factor, low, high, original] = scaling;
  add_rope_kind(values, "llama3", std::pair("factor", factor), std::pair("low_freq_factor", low),
                std::pair("high_freq_factor", high),
                std::pair("original_max_position_embeddings", original));
}

void add_scaling(Settings& values, const model::YarnScaling& scaling) {
  const auto& [factor, fast, slow, truncate, attention_factor, original] = scaling;
  add_rope_kind(values, "yarn", std::pair("factor", factor), std::pair("beta_fast", fast),
                std::pair("beta_slow", slow), std::pair("truncate", truncate),
                std::pair("attention_factor", attention_factor),
                std::pair("original_max_position_embeddings", original));
}

void add_scaling(Settings& values, const model::LongRopeScaling& scaling) {
  const auto& [short_factors, long_factors, attention_factor, original] = scaling;
  values.emplace_back("config.json: rope_type", "longrope");
  values.emplace_back("config.json: rope short_factor",
                      fmt::format("{}", fmt::join(short_factors, ", ")));
  values.emplace_back("config.json: rope long_factor",
                      fmt::format("{}", fmt::join(long_factors, ", ")));
  values.emplace_back("config.json: rope attention_factor", fmt::format("{}", attention_factor));
  values.emplace_back("config.json: rope original_max_position_embeddings",
                      fmt::format("{}", original));
}

void add_rope(Settings& values, const model::RopeConfig& rope) {
  const auto& [theta, scaling, rotated_share] = rope;
  if (rotated_share != 1) {
    values.emplace_back("config.json: partial_rotary_factor", fmt::format("{}", rotated_share));
  }
  values.emplace_back("config.json: rope_theta", fmt::format("{}", theta));
  std::visit([&](const auto& kind) { add_scaling(values, kind); }, scaling);
}

// Under the names that most families have for the fields.
void add_shape(Settings& values, const model::DecoderConfig& shape) {
  const auto& [hidden_size, feed_forward_size, layers, heads, key_heads, head_size, vocab_size,
               context_length, norm_epsilon, initializer_range, tied_embedding, rope, window_rope,
               layers_without_rope, query_key_value_bias, head_norm, norm_placement, norm_gain,
               fused_projections, gelu_gate, score_scale, score_cap, window, layers_with_window,
               embedding_scale, rounds_embedding_scale, residual_scale, logits, learned_positions,
               residual_is_normalised] = shape;
  static_cast<void>(initializer_range);  // of weights that are not loaded
  // The names of parameters tell.
  static_cast<void>(query_key_value_bias);
  static_cast<void>(head_norm);
  static_cast<void>(norm_placement);
  static_cast<void>(fused_projections);
  static_cast<void>(learned_positions);
  // The family decides.
  static_cast<void>(norm_gain);
  static_cast<void>(rounds_embedding_scale);
  static_cast<void>(gelu_gate);
  const auto add = [&](const char* field, const auto& value) {
    values.emplace_back(std::string("config.json: ") + field, fmt::format("{}", value));
  };
  add("hidden_size", hidden_size);
  add("intermediate_size", feed_forward_size);
  add("num_hidden_layers", layers);
  add("num_attention_heads", heads);
  add("num_key_value_heads", key_heads);
  add("head_dim", head_size);
  add("vocab_size", vocab_size);
  add("max_position_embeddings", context_length);
  add("epsilon of norms", norm_epsilon);
  add("tie_word_embeddings", tied_embedding);
  add("apply_residual_connection_post_layernorm", residual_is_normalised);
  const auto add_unless = [&](double neutral, const char* field, double value) {
    if (value != neutral) {
      add(field, value);
    }
  };
  add_unless(1, "scale of embeddings", embedding_scale);
  add_unless(1, "residual_multiplier", residual_scale);
  add_unless(1, "logits_scaling", logits.divisor);
  add_unless(0, "final_logit_softcapping", logits.cap.value_or(0));
  if (rope) {
    add_rope(values, *rope);
  }
  if (window_rope) {
    Settings of_windows;
    add_rope(of_windows, *window_rope);
    for (auto& [name, value] : of_windows) {
      values.emplace_back(name + " of layers with a window", value);
    }
  }
  if (!layers_without_rope.empty()) {
    add("layers without rope", fmt::format("{}", fmt::join(layers_without_rope, ", ")));
  }
  if (score_scale != 0) {
    add("scale of scores", score_scale);
  }
  if (score_cap != 0) {
    add("attn_logit_softcapping", score_cap);
  }
  if (!layers_with_window.empty()) {
    add("sliding_window", window);
    add("layers with a window", fmt::format("{}", fmt::join(layers_with_window, ", ")));
  }
}

std::string end_token_of(const text::Tokenizer& tokenizer) {
  if (tokenizer.stop_ids().empty()) {
    return "none";
  }
  const text::TokenId id = tokenizer.end_id();
  return fmt::format("\"{}\" (id {})",
                     tokenizer.decode(std::vector{id}, /*skip_special_tokens=*/false), id);
}

void add_elements(sherd::files::Sha256& digest, const sherd::SafetensorsFile& file,
                  const sherd::SafetensorsEntry& entry, std::int64_t begin, std::int64_t end) {
  const auto bytes_per_element =
      (entry.end_byte - entry.begin_byte) / static_cast<std::uint64_t>(entry.numel());
  std::vector<char> bytes(static_cast<std::size_t>(end - begin) * bytes_per_element);
  file.read_elements(entry, begin, end, entry.dtype, bytes.data());
  digest.add(bytes.data(), bytes.size());
}

void add_tensor(sherd::files::Sha256& digest, const sherd::SafetensorsFile& file,
                const sherd::SafetensorsEntry& entry) {
  const std::string described =
      fmt::format("{} {} {}\n", entry.name, entry.dtype_name, fmt::join(entry.shape, "x"));
  digest.add(described.data(), described.size());
  const std::int64_t numel = entry.numel();
  if (numel == 0 || entry.dtype == at::ScalarType::Undefined) {
    return;  // a dtype that is not read is refused where the tensor is needed
  }
  if (numel <= kSmallTensor) {
    return add_elements(digest, file, entry, 0, numel);
  }
  for (std::int64_t i = 0; i < kBlocksPerTensor; ++i) {
    const std::int64_t begin = i * ((numel - kSampledBlock) / (kBlocksPerTensor - 1));
    add_elements(digest, file, entry, begin, begin + kSampledBlock);
  }
}

}  // namespace

Settings model_identity(const io::HfConfig& config, const text::Tokenizer& tokenizer) {
  Settings values = {{"config.json: model_type", config.family->model_type}};
  add_shape(values, config.shape);
  values.emplace_back("tokenizer.json (SHA-256)", tokenizer.sha256());
  values.emplace_back(
      "the end token (tokenizer_config.json, special_tokens_map.json, generation_config.json)",
      end_token_of(tokenizer));
  values.emplace_back("the set of stop ids (generation_config.json, config.json)",
                      fmt::format("{}", fmt::join(tokenizer.stop_ids(), ", ")));
  return values;
}

Settings with_model_identity(Settings settings, const io::HfConfig& config,
                             const text::Tokenizer& tokenizer) {
  const Settings of_model = model_identity(config, tokenizer);
  settings.insert(settings.end(), of_model.begin(), of_model.end());
  return settings;
}

Settings weights_identity(const sherd::SafetensorsFolder& weights) {
  Settings values;
  for (const sherd::SafetensorsFile& file : weights.files()) {
    std::vector<const sherd::SafetensorsEntry*> entries;
    std::uint64_t bytes = 0;
    for (const sherd::SafetensorsEntry& entry : file.entries()) {
      entries.push_back(&entry);
      bytes += entry.end_byte - entry.begin_byte;
    }
    std::sort(entries.begin(), entries.end(),
              [](const auto* one, const auto* other) { return one->name < other->name; });
    sherd::files::Sha256 digest;
    for (const sherd::SafetensorsEntry* entry : entries) {
      add_tensor(digest, file, *entry);
    }
    values.emplace_back(
        std::filesystem::path(file.path()).filename().string(),
        fmt::format("{} tensors of {} bytes with SHA-256 {}… (sampled)", entries.size(), bytes,
                    digest.finish().substr(0, kDigitsOfSample)));
  }
  return values;
}

}  // namespace llm::setup
