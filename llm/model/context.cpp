#include "llm/model/context.h"

#include <optional>

#include <ATen/ops/cat.h>

#include "ops/attention.h"

namespace llm::model {

at::Tensor with_position(const at::Tensor& heads_TNH, const sherd::ops::RotaryTables& angles) {
  const auto rotated = [&](const at::Tensor& heads) {
    return sherd::ops::rotary(heads.unsqueeze(2), angles).squeeze(2);
  };
  const int64_t size = heads_TNH.size(2), first = 2 * angles.cosine.size(-1);
  return first == size ? rotated(heads_TNH)
                       : at::cat({rotated(heads_TNH.narrow(2, 0, first)),
                                  heads_TNH.narrow(2, first, size - first)},
                                 2);
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const Context& context, int64_t layer,
                  const sherd::ops::AttentionScores& scores) {
  const auto slopes =
      context.alibi_slopes.defined() ? std::optional(context.alibi_slopes) : std::nullopt;
  return context.cache == nullptr
             ? sherd::ops::attention(query, key, value, context.documents, slopes,
                                     context.attention, scores)
             : context.cache->attend(layer, query, key, value, slopes, context.attention, scores);
}

}  // namespace llm::model
