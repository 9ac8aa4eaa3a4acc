// BLOOM and GPT-2 in llama.cpp.

#include <fmt/core.h>

#include "llm/gguf/common_keys.h"

namespace llm::gguf {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLayerNormEpsilon = "attention.layer_norm_epsilon";

void write_bloom(const SourceModel& model, KeyWriter& keys) {
  if (model.shape.residual_is_normalised) {
    model.refuse("\"apply_residual_connection_post_layernorm\" true");
  }
  write_shape(model, keys, kLayerNormEpsilon);
}

void write_gpt2(const SourceModel& model, KeyWriter& keys) {
  if (model.config.value("scale_attn_by_inverse_layer_idx", Json(false)) == true) {
    model.refuse("\"scale_attn_by_inverse_layer_idx\" true");
  }
  if (model.config.value("scale_attn_weights", Json(true)) == false) {
    model.refuse("\"scale_attn_weights\" false");
  }
  write_shape(model, keys, kLayerNormEpsilon);
}

// Refuses a width of the feed-forward part other than BLOOM's only one.
void check_inner_size(const KeyReader& keys) {
  const std::int64_t inner = 4 * keys.whole("embedding_length");
  if (keys.whole("feed_forward_length", inner) != inner) {
    keys.refuse("feed_forward_length", fmt::format("is not {}, four times the width", inner));
  }
}

void read_bloom(const KeyReader& keys, Json& config) {
  check_inner_size(keys);
  config["hidden_size"] = keys.whole("embedding_length");
  config["n_layer"] = keys.whole("block_count");
  config["n_head"] = keys.whole("attention.head_count");
  config["seq_length"] = keys.whole("context_length");
  config["layer_norm_epsilon"] = keys.number("attention.layer_norm_epsilon");
  config["apply_residual_connection_post_layernorm"] = false;
}

void read_gpt2(const KeyReader& keys, Json& config) {
  config["n_embd"] = keys.whole("embedding_length");
  config["n_layer"] = keys.whole("block_count");
  config["n_head"] = keys.whole("attention.head_count");
  config["n_positions"] = keys.whole("context_length");
  config["n_inner"] = keys.whole("feed_forward_length");
  config["layer_norm_epsilon"] = keys.number("attention.layer_norm_epsilon");
  config["activation_function"] = "gelu_new";
}

std::vector<const char*> layer_norm_keys() {
  return {"block_count",
          "context_length",
          "embedding_length",
          "feed_forward_length",
          "attention.head_count",
          "attention.head_count_kv",
          "attention.layer_norm_epsilon",
          "vocab_size"};
}

}  // namespace

const Architecture& bloom_architecture();  // architecture.cpp names them
const Architecture& gpt2_architecture();

const Architecture& bloom_architecture() {
  static const Architecture bloom = {
      .name = "bloom",
      .model_types = {"bloom"},
      .model_class = "BloomForCausalLM",
      .tensors = {{"token_embd", "transformer.word_embeddings"},
                  {"token_embd_norm", "transformer.word_embeddings_layernorm"},
                  {"output_norm", "transformer.ln_f"},
                  {"output", "lm_head"},
                  {"blk.{}.attn_norm", "transformer.h.{}.input_layernorm"},
                  {"blk.{}.attn_qkv", "transformer.h.{}.self_attention.query_key_value",
                   Change::HeadsLast},
                  {"blk.{}.attn_output", "transformer.h.{}.self_attention.dense"},
                  {"blk.{}.ffn_norm", "transformer.h.{}.post_attention_layernorm"},
                  {"blk.{}.ffn_up", "transformer.h.{}.mlp.dense_h_to_4h"},
                  {"blk.{}.ffn_down", "transformer.h.{}.mlp.dense_4h_to_h"}},
      .keys = layer_norm_keys(),
      .write_keys = &write_bloom,
      .read_keys = &read_bloom};
  return bloom;
}

const Architecture& gpt2_architecture() {
  static const Architecture gpt2 = {
      .name = "gpt2",
      .model_types = {"gpt2"},
      .model_class = "GPT2LMHeadModel",
      .tensors = {{"token_embd", "transformer.wte"},
                  {"position_embd", "transformer.wpe"},
                  {"output_norm", "transformer.ln_f"},
                  {"output", "lm_head"},
                  {"blk.{}.attn_norm", "transformer.h.{}.ln_1"},
                  {"blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn", Change::Transposed},
                  {"blk.{}.attn_output", "transformer.h.{}.attn.c_proj", Change::Transposed},
                  {"blk.{}.ffn_norm", "transformer.h.{}.ln_2"},
                  {"blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc", Change::Transposed},
                  {"blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj", Change::Transposed}},
      .keys = layer_norm_keys(),
      .write_keys = &write_gpt2,
      .read_keys = &read_gpt2};
  return gpt2;
}

}  // namespace llm::gguf
