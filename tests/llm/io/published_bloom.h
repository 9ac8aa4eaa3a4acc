#pragma once
// tiny-bloom-hf as BLOOM checkpoints are published.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sherd/safetensors.h"
#include "tests/llm/io/model_folders.h"

namespace llm::io {

/// The fields of published config.json files, for the sizes of tiny-bloom-hf.
inline nlohmann::json published_bloom_config() {
  return {{"apply_residual_connection_post_layernorm", false},
          {"architectures", {"BloomModel"}},
          {"attention_dropout", 0.0},
          {"attention_softmax_in_fp32", true},
          {"bias_dropout_fusion", true},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"hidden_dropout", 0.0},
          {"initializer_range", 0.02},
          {"layer_norm_epsilon", 1e-05},
          {"masked_softmax_fusion", true},
          {"model_type", "bloom"},
          {"n_embed", 64},
          {"n_inner", nullptr},
          {"n_layer", 2},
          {"num_attention_heads", 4},
          {"offset_alibi", 100},
          {"pad_token_id", 3},
          {"pretraining_tp", 2},
          {"seq_length", 2048},
          {"skip_bias_add", true},
          {"skip_bias_add_qkv", false},
          {"slow_but_exact", true},
          {"unk_token_id", 0},
          {"use_cache", true},
          {"vocab_size", 512}};
}

/// Writes config.json and weights of `dtype`, named without `transformer.`, into a folder.
inline void make_published_bloom(const std::string& folder, c10::ScalarType dtype) {
  const std::string prefix = "transformer.";
  const sherd::SafetensorsFile source(kData + "tiny-bloom-hf/model.safetensors");
  std::vector<sherd::SafetensorsSpec> specs;
  for (const auto& entry : source.entries()) {
    specs.push_back({entry.name.substr(prefix.size()), dtype, entry.shape});
  }
  sherd::SafetensorsWriter writer(folder + "/model.safetensors", specs);
  for (const auto& entry : source.entries()) {
    const at::Tensor values = source.read(entry).to(dtype);
    writer.write(entry.name.substr(prefix.size()), values.const_data_ptr(), values.nbytes());
  }
  writer.finish();
  write_all(folder + "/config.json", published_bloom_config().dump());
}

}  // namespace llm::io
