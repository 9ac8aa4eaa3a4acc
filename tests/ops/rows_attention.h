#pragma once
// attention() of rows of one length, heads first.

#include <optional>

#include "ops/attention.h"

namespace sherd::ops {

/// Query [B, N, T, H], key and value [B, K, T, H] -> [B, T, N × H].
inline at::Tensor rows_attention(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value,
                                 const std::optional<at::Tensor>& slopes = std::nullopt) {
  const auto side_by_side = [](const at::Tensor& rows) {
    return rows.transpose(1, 2).flatten(0, 1);
  };
  const int64_t rows = query.size(0), tokens = query.size(2);
  return attention(side_by_side(query), side_by_side(key), side_by_side(value),
                   Documents::of_equal_length(rows, tokens), slopes)
      .view({rows, tokens, query.size(1) * query.size(3)});
}

}  // namespace sherd::ops
