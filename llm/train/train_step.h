#pragma once
// One optimizer step over all ranks.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "llm/inputs/batch.h"
#include "llm/model/causal_lm.h"
#include "llm/train/graphed_micro_batches.h"
#include "llm/train/step_clock.h"
#include "sherd/custom.h"
#include "sherd/fully_shard.h"
#include "sherd/memory.h"
#include "sherd/optim.h"

namespace llm::train {

/// What one step did, all ranks together.
struct StepOutcome {
  /// Mean over the supervised tokens, with an objective over the samples; NaN where there is none.
  double loss = 0;
  double grad_norm = 0;
  std::int64_t tokens = 0;
  std::int64_t supervised_tokens = 0;
  std::int64_t samples = 0;
  std::int64_t attended_pairs = 0;  ///< of a token and one that it sees: itself, or before it
  bool overflowed = false;          ///< fp16 gradients were not finite: nothing was updated
  std::string skipped = {};  ///< what was not finite, where nothing was updated for it: "the loss"
  bool stop_requested = false;  ///< some rank was asked to stop: the step was not begun
  std::map<std::string, double> figures = {};  ///< of the objective: means over the samples
  /// Of this rank, where the model is computed.
  double seconds = 0;
  /// Of them, by phases, on a device.
  std::map<Phase, double> phase_seconds = {};
};

/// The inputs of a step besides its data.
struct StepPlan {
  std::int64_t number = 0;                              ///< of the step in the run, for messages
  std::optional<double> clip_grad_norm = std::nullopt;  ///< without it the norm is only measured
  bool stop_here = false;  ///< this rank was asked to stop; if any was, no rank begins the step
  /// A loss or norm that is not finite leaves the update out on every rank
  /// (StepOutcome::skipped) and does not throw. Moments and step counts of the optimizer stay as
  /// they are. With a scaler on a device other than the CPU the scale shrinks as after an overflow.
  /// Not with `updated_in_backward`.
  bool skips_non_finite = false;
  /// The optimizer updates in backward: no norm is taken, and what is not finite is found too late
  /// to leave the parameters as they were.
  bool updated_in_backward = false;
  /// On a device: whether a step before, whose figures have not been read, was left out for not
  /// being finite; then so is this one. LaunchedStep::left_out() of the last; undefined: no.
  at::Tensor left_out = {};
  /// Of the masks of dropout; none: nothing is dropped.
  std::optional<std::uint64_t> dropout_seed = std::nullopt;
  /// Runs its micro-batches; null: they are no graphs.
  GraphedMicroBatches* graphs = nullptr;
  /// The loss; null: cross-entropy of the supervised tokens. Not with `graphs`.
  const sherd::Objective* objective = nullptr;
};

/// A step whose work has been given to the device: over a CPU it is done, another device may still
/// be at it. Loss and norm come to the host when they are read, so that a device finds the next
/// step waiting when it has done this one.
class LaunchedStep {
 public:
  LaunchedStep(StepOutcome known, const StepPlan& plan, StepClock clock);

  /// What is known at once: tokens, samples, and whether it was begun.
  [[nodiscard]] const StepOutcome& known() const { return outcome_; }
  /// For StepPlan::left_out of the next step.
  [[nodiscard]] const at::Tensor& left_out() const { return left_out_; }
  /// All of it, once the device has done the step. Collective; once. Throws
  /// sherd::Error(NonFinite) on every rank for a loss or norm that is not finite, unless such steps
  /// are skipped.
  [[nodiscard]] StepOutcome read(sherd::World& world);

 private:
  friend LaunchedStep launch_step(sherd::Sharded<model::CausalLm>&, sherd::AdamW&,
                                  sherd::GradScaler*, const std::vector<inputs::Batch>&,
                                  const StepPlan&, std::optional<StepClock>);
  at::Tensor run(sherd::Sharded<model::CausalLm>& model, const sherd::GradScaler* scaler,
                 const std::vector<inputs::Batch>& micro_batches, const StepPlan& plan);
  void clip(sherd::Sharded<model::CausalLm>& model, const StepPlan& plan);
  void note_left_out(const at::Tensor& loss, const at::Tensor& found_inf,
                     const sherd::GradScaler* scaler, const StepPlan& plan);
  void take_finite(const char* what, double value);
  void take_loss(double of_all_ranks);
  void take_figures(std::span<const double> of_all_ranks);
  void take_norm(double norm);
  void take_overflow(double scale);
  void send_figures(const at::Tensor& loss, const at::Tensor& found_inf,
                    const sherd::GradScaler* scaler);
  void update(sherd::AdamW& optimizer, sherd::GradScaler* scaler);

  StepOutcome outcome_;
  std::int64_t number_;
  const sherd::Objective* objective_;
  bool skips_non_finite_;
  StepClock clock_;
  at::Tensor objective_figures_;  // fp64 [F]: this rank's sums; undefined without an objective
  at::Tensor norm_;               // undefined: none was taken
  at::Tensor left_out_;           // on a device
  // On a device: this rank's loss; the norm; with a scaler whether gradients overflowed, and the
  // scale that they had; 0 for what there is not. Then objective_figures_.
  std::optional<sherd::HostCopy> figures_;
};

/// Runs forward and backward of this rank's micro-batches and updates the parameters. The loss is
/// the sum over the supervised tokens of all ranks and micro-batches ÷ their number, or of an
/// objective over their samples, so that it does not depend on how the batch is cut. With a
/// `scaler` the loss is scaled, and a step whose gradients are not finite is left out while the
/// scale shrinks.
///
/// Nothing is updated by a loss or gradients that are not finite. On a CPU it throws
/// sherd::Error(NonFinite) on every rank before the update, or skips it
/// (StepPlan::skips_non_finite). Another device leaves the update out by
/// itself: a loss that is not finite on some rank makes NaN of all gradients and of the norm; and
/// LaunchedStep::read() throws. With a scaler gradients throw only where no scale helps. `clock`:
/// of the step, where it has begun before the call. Collective.
LaunchedStep launch_step(sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
                         sherd::GradScaler* scaler, const std::vector<inputs::Batch>& micro_batches,
                         const StepPlan& plan, std::optional<StepClock> clock = std::nullopt);

/// launch_step(), and LaunchedStep::read() at once. Collective. Throws as they do.
StepOutcome train_step(sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
                       sherd::GradScaler* scaler, const std::vector<inputs::Batch>& micro_batches,
                       const StepPlan& plan);

}  // namespace llm::train
