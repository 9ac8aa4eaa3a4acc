#include "llm/model/context.h"

#include <optional>

#include "ops/attention.h"

namespace llm::model {

at::Tensor with_position(const at::Tensor& heads_TNH, const Context& context) {
  return sherd::ops::rotary(heads_TNH.unsqueeze(2), context.rotary).squeeze(2);
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
