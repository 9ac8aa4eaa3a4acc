#pragma once
// A run on the meta device: the model's own calls, without memory.

#include <memory>

#include "llm/model/causal_lm.h"
#include "llm/plan/planned_run.h"
#include "sherd/communicator.h"
#include "sherd/fully_shard.h"

namespace llm::plan {

/// The module of a run, on meta and not sharded yet.
[[nodiscard]] model::CausalLm meta_module(const PlannedRun& run);

/// Rank 0 of the run's ranks. Throws sherd::Error(Usage) for ranks and strategies that do not fit
/// each other. `observer` is told of its collectives.
[[nodiscard]] sherd::Sharded<model::CausalLm> meta_model(
    const model::CausalLm& module, const PlannedRun& run,
    std::shared_ptr<sherd::CollectiveObserver> observer = nullptr);

/// As a training step computes it. A pair is two entries of the batch.
[[nodiscard]] at::Tensor loss_of(sherd::Sharded<model::CausalLm>& model, const MicroBatch& batch,
                                 const PlannedLoss& loss = {});

/// As eval::evaluate() does: the loss, then prompts and a token of each answer.
void evaluate(sherd::Sharded<model::CausalLm>& model, const PlannedEvaluation& evaluation,
              const PlannedLoss& loss = {});

}  // namespace llm::plan
