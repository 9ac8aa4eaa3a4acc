#pragma once
// A collated batch as tensors.

#include <ATen/core/Tensor.h>

#include "llm/data/batch.h"
#include "llm/model/causal_lm.h"
#include "sherd/fully_shard.h"

namespace llm::eval {

/// int64 [B, T] each.
struct BatchTensors {
  at::Tensor input_ids_BT;
  at::Tensor labels_BT;
  at::Tensor attention_mask_BT;
};

/// Copies a batch into tensors. An empty one becomes a single row of padding without labels: a rank
/// that has no sample left runs it, because it must take part in every collective.
[[nodiscard]] BatchTensors to_tensors(const data::Batch& batch);

/// CausalLmImpl::loss_sum of a sharded model: the sum over the supervised tokens of these rows.
/// Collective, as is the backward of what it returns.
[[nodiscard]] at::Tensor loss_sum(sherd::Sharded<model::CausalLm>& model,
                                  const BatchTensors& batch);

}  // namespace llm::eval
