#pragma once
// A Llama whose sizes divide by nothing, and batches for it.

#include <mutex>

#include <torch/utils.h>

#include "llm/model/llama.h"
#include "tests/llm/model/test_batch.h"

namespace llm::model {

inline LlamaConfig small_llama_config(bool tied = false) {
  return {.hidden_size = 13,
          .intermediate_size = 29,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 6,
          .vocab_size = kVocabulary,
          .max_position_embeddings = 64,
          .rms_norm_eps = 1e-5,
          .initializer_range = 0.3,
          .tie_word_embeddings = tied,
          .rope = {}};
}

/// The same weights for the same configuration, on whatever thread.
inline Llama make_llama(const LlamaConfig& config) {
  static std::mutex one_at_a_time;  // ranks are threads, and the generator is one for all
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(3);
  return Llama(config);
}

}  // namespace llm::model
