#pragma once
// A Llama whose sizes divide by nothing, and batches for it.

#include <algorithm>
#include <mutex>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/utils.h>

#include "llm/model/llama.h"

namespace llm::model {

inline LlamaConfig small_config(bool tied = false) {
  return {.hidden_size = 13,
          .intermediate_size = 29,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 6,
          .vocab_size = 37,
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

struct TestBatch {
  at::Tensor ids, labels, mask;  // [B, T]
};

/// Rows of the given lengths, padded on the right to the longest; the last third is supervised.
inline TestBatch make_batch(const std::vector<int64_t>& lengths, int64_t vocabulary) {
  const int64_t tokens = *std::max_element(lengths.begin(), lengths.end());
  auto generator = at::detail::createCPUGenerator(11);
  const auto rows = static_cast<int64_t>(lengths.size());
  const at::Tensor ids = at::randint(vocabulary, {rows, tokens}, generator, at::kLong);
  const at::Tensor length = at::tensor(lengths, at::kLong).unsqueeze(1);
  const at::Tensor place = at::arange(tokens, at::kLong).unsqueeze(0);
  const at::Tensor real = place < length;
  const at::Tensor supervised = real & (place * 3 >= length * 2);
  return {at::where(real, ids, at::full_like(ids, 0)),
          at::where(supervised, ids, at::full_like(ids, kIgnoredLabel)), real.to(at::kLong)};
}

}  // namespace llm::model
