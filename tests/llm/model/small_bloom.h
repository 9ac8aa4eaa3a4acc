#pragma once
// A BLOOM whose number of heads is no power of two, so that bf16 could not hold their slopes, and
// batches for it.

#include <mutex>

#include <torch/utils.h>

#include "llm/families/family.h"
#include "llm/model/causal_lm.h"
#include "tests/llm/model/test_batch.h"

namespace llm::model {

inline DecoderConfig small_bloom_config(bool tied = true) {
  return {.hidden_size = 36,
          .feed_forward_size = 144,
          .layers = 3,
          .heads = 12,
          .key_heads = 12,
          .head_size = 3,
          .vocab_size = kVocabulary,
          .context_length = 64,
          .norm_epsilon = 1e-5,
          .initializer_range = 0.3,
          .tied_embedding = tied};
}

/// The same weights for the same configuration, on whatever thread. No parameter is zero or one.
inline CausalLm make_bloom(const DecoderConfig& config) {
  static std::mutex one_at_a_time;  // ranks are threads, and the generator is one for all
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(5);
  CausalLm bloom = families::find_family("bloom")->build(config);
  for (const auto& parameter : bloom->named_parameters()) {
    if (parameter.value().dim() == 1) {
      const double mean = parameter.key().ends_with("bias") ? 0 : 1;
      parameter.value().detach().normal_(mean, 0.2);
    }
  }
  return bloom;
}

}  // namespace llm::model
