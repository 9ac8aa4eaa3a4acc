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
#include "llm/model/token_batch.h"

namespace llm::model {

inline constexpr int64_t kVocabulary = 37;  // of the small models

/// Documents of the given lengths; the last third of each is supervised.
inline TokenBatch make_batch(const std::vector<int64_t>& lengths, int64_t vocabulary) {
  const int64_t tokens = *std::max_element(lengths.begin(), lengths.end());
  auto generator = at::detail::createCPUGenerator(11);
  const auto rows = static_cast<int64_t>(lengths.size());
  const at::Tensor ids = at::randint(vocabulary, {rows, tokens}, generator, at::kLong);
  const at::Tensor length = at::tensor(lengths, at::kLong).unsqueeze(1);
  const at::Tensor place = at::arange(tokens, at::kLong).unsqueeze(0);
  const at::Tensor real = place < length;
  const at::Tensor supervised = real & (place * 3 >= length * 2);
  return without_padding(ids, at::where(supervised, ids, at::full_like(ids, kIgnoredLabel)),
                         real.to(at::kLong));
}

/// One document of a batch.
inline TokenBatch document_of(const TokenBatch& batch, int64_t document) {
  const auto part = [&](const at::Tensor& tokens) {
    return tokens.slice(0, batch.documents.begin(document), batch.documents.end(document));
  };
  return {part(batch.ids_T), part(batch.labels_T),
          sherd::ops::Documents({0, batch.documents.length(document)})};
}

}  // namespace llm::model
