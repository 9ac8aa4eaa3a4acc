#pragma once
// A collated batch as tensors.

#include <ATen/core/Tensor.h>

#include "llm/inputs/batch.h"
#include "llm/model/causal_lm.h"
#include "llm/model/token_batch.h"
#include "sherd/custom.h"
#include "sherd/fully_shard.h"

namespace llm::setup {

/// Copies a batch into tensors. An empty one has no token: a rank that has no sample left runs it,
/// because it must take part in every collective.
[[nodiscard]] model::TokenBatch to_tensors(const inputs::Batch& batch);

/// CausalLmImpl::loss_sum of a sharded model: the sum over the supervised tokens of these
/// documents. Collective, as is the backward of what it returns.
[[nodiscard]] at::Tensor loss_sum(sherd::Sharded<model::CausalLm>& model,
                                  const model::TokenBatch& batch);

/// CausalLmImpl::objective_sum of a sharded model: the sum over the samples of these documents, in
/// its figures too. A batch without `reference_logps_N` takes base_logps(), where the objective
/// needs a reference. Collective, as is the backward of its loss.
[[nodiscard]] model::ObjectiveLoss objective_sum(sherd::Sharded<model::CausalLm>& model,
                                                 const model::TokenBatch& batch,
                                                 const sherd::Objective& objective);

/// CausalLmImpl::logps of a sharded model -> fp64 [N] on its device. Collective.
[[nodiscard]] at::Tensor logps(sherd::Sharded<model::CausalLm>& model,
                               const model::TokenBatch& batch);
/// The same with adapters switched off: of the base under a fresh adapter.
[[nodiscard]] at::Tensor base_logps(sherd::Sharded<model::CausalLm>& model,
                                    const model::TokenBatch& batch);

}  // namespace llm::setup
