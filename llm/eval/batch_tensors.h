#pragma once
// A collated batch as tensors.

#include <ATen/core/Tensor.h>

#include "llm/data/batch.h"

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

}  // namespace llm::eval
