#pragma once
// One optimizer step over all ranks.

#include <cstdint>
#include <optional>
#include <vector>

#include "llm/data/batch.h"
#include "llm/model/causal_lm.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"

namespace llm::train {

/// What one step did, all ranks together.
struct StepOutcome {
  double loss = 0;
  double grad_norm = 0;
  std::int64_t tokens = 0;
  std::int64_t supervised_tokens = 0;
  std::int64_t samples = 0;
  std::int64_t attended_pairs = 0;  ///< of a token and itself or one before it in its sample
  bool overflowed = false;          ///< fp16 gradients were not finite: nothing was updated
  bool stop_requested = false;      ///< some rank was asked to stop: the step was not begun
};

/// The inputs of a step besides its data.
struct StepPlan {
  std::int64_t number = 0;                              ///< of the step in the run, for messages
  std::optional<double> clip_grad_norm = std::nullopt;  ///< without it the norm is only measured
  bool stop_here = false;  ///< this rank was asked to stop; if any was, no rank begins the step
  /// The optimizer updates in backward: no norm is taken, and what is not finite is found too late
  /// to leave the parameters as they were.
  bool updated_in_backward = false;
};

/// Runs forward and backward of this rank's micro-batches and updates the parameters. The loss is
/// the sum over the supervised tokens of all ranks and micro-batches ÷ their number, so that it
/// does not depend on how the batch is cut. With a `scaler` the loss is scaled, and a step whose
/// gradients are not finite is left out while the scale shrinks. Collective. Throws
/// sherd::Error(NonFinite) on every rank, before the update, for a loss or gradient that is not
/// finite; with a scaler only where no scale helps.
StepOutcome train_step(sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
                       sherd::GradScaler* scaler, const std::vector<data::Batch>& micro_batches,
                       const StepPlan& plan);

}  // namespace llm::train
