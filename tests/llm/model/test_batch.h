#pragma once
// Batches for the models of these tests.

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/utils.h>

#include "llm/model/causal_lm.h"

namespace llm::model {

inline constexpr int64_t kVocabulary = 37;  // of the small models

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
