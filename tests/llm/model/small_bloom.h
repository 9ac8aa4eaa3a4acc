#pragma once
// A BLOOM whose number of heads is no power of two, so that bf16 could not hold their slopes, and
// batches for it.

#include <mutex>

#include <torch/utils.h>

#include "llm/model/bloom.h"
#include "tests/llm/model/test_batch.h"

namespace llm::model {

inline BloomConfig small_bloom_config(bool tied = true) {
  return {.hidden_size = 36,
          .n_layer = 3,
          .n_head = 12,
          .vocab_size = kVocabulary,
          .seq_length = 64,
          .initializer_range = 0.3,
          .tie_word_embeddings = tied};
}

/// The same weights for the same configuration, on whatever thread. No parameter is zero or one.
inline Bloom make_bloom(const BloomConfig& config) {
  static std::mutex one_at_a_time;  // ranks are threads, and the generator is one for all
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(5);
  Bloom bloom(config);
  for (const auto& parameter : bloom->named_parameters()) {
    if (parameter.value().dim() == 1) {
      const double mean = parameter.key().ends_with("bias") ? 0 : 1;
      parameter.value().detach().normal_(mean, 0.2);
    }
  }
  return bloom;
}

}  // namespace llm::model
