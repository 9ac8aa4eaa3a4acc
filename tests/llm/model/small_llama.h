#pragma once
// A Llama whose sizes divide by nothing, and batches for it.

#include <mutex>

#include <torch/utils.h>

#include "llm/families/family.h"
#include "llm/model/causal_lm.h"
#include "tests/llm/model/test_batch.h"

namespace llm::model {

inline DecoderConfig small_llama_config(bool tied = false) {
  return {.hidden_size = 13,
          .feed_forward_size = 29,
          .layers = 3,
          .heads = 4,
          .key_heads = 2,
          .head_size = 6,
          .vocab_size = kVocabulary,
          .context_length = 64,
          .norm_epsilon = 1e-5,
          .initializer_range = 0.3,
          .tied_embedding = tied,
          .rope = RopeConfig{}};
}

/// The same weights for the same configuration, on whatever thread.
inline CausalLm make_llama(const DecoderConfig& config) {
  static std::mutex one_at_a_time;  // ranks are threads, and the generator is one for all
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(3);
  return families::find_family("llama")->build(config);
}

}  // namespace llm::model
