#pragma once
// The fused AdamW over shards and global-norm clipping.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/ordered_dict.h>

#include "sherd/optimizer_state.h"
#include "sherd/sharded_module.h"

namespace torch::optim {
class Optimizer;
}

namespace sherd {

/// PyTorch: the arguments of `torch.optim.AdamW`.
struct AdamWOptions {
  double lr = 1e-3;                                ///< learning rate
  std::pair<double, double> betas = {0.9, 0.999};  ///< decay rates of the two moments
  double eps = 1e-8;                               ///< added to the root of the second moment
  double weight_decay = 1e-2;  ///< decoupled: parameters shrink by lr × weight_decay a step
};

/// Parameters with options of their own. The first group whose `contains` accepts a name takes it.
struct ParamGroup {
  std::function<bool(const std::string& name)>
      contains;          ///< whether it takes the parameter of this qualified name
  AdamWOptions options;  ///< of the parameters it takes
};

/// How an AdamW keeps its state, and when it works.
struct AdamWMode {
  /// kFloat, or kBFloat16 for half the memory: moments are rounded at random, so that small changes
  /// add up in expectation; docs/guide/precision.md has what that costs.
  c10::ScalarType moments_dtype = c10::ScalarType::Float;
  /// Updates each unit as soon as its gradients are summed, in backward, so that the gradient
  /// shards of all units are never held at once; step() then only ends the step. Excludes what
  /// needs all gradients first: clipping, accumulation, unscaling. A backward that fails after the
  /// first update leaves parameters and optimizer state torn, until a checkpoint is loaded.
  /// PyTorch: an optimizer in `register_post_accumulate_grad_hook`.
  bool in_backward = false;
  /// Takes the parameters that it accepts and leaves the others alone, without moments for them;
  /// unset: all. The same on every rank. PyTorch: the parameters that an optimizer is given.
  std::function<bool(const std::string& name)> contains = {};
};

/// This rank's part of one parameter's moments, as views; of moments that rest on a disk (Offload)
/// copies, which are not written back.
struct MomentShard {
  std::string name;       ///< of the parameter, qualified
  at::Tensor exp_avg;     ///< [end − begin] of the ParameterShard of that name, in moments_dtype
  at::Tensor exp_avg_sq;  ///< the same
};

/// AdamW that reads the reduced gradients and writes master, moments and the travelling shard in
/// one pass.
///
/// Memory: two moments of this rank's part of the parameters that it updates. A parameter that has
/// got no gradient on any rank since zero_grad() is left alone, and so is one that has been frozen
/// since sharding (`requires_grad_(false)` on every rank): neither moments nor decay move it, and
/// the update does not count in its bias correction. With AdamWMode::in_backward ranks cannot wait
/// to compare what they used: there, parameters without gradient in a unit whose backward ran count
/// as having zeros. Used by the thread that uses the model: nothing here locks. PyTorch:
/// `torch.optim.AdamW(fused=True)`.  Paper: arXiv:1711.05101.
class AdamW : public CheckpointableOptimizer {
 public:
  /// Moments start at zero. Not collective. Parameters in no group get `options`. Throws
  /// Error: Usage for numbers out of range, another moments_dtype, a `contains` that accepts
  /// nothing, a second optimizer where one works in backward; OutOfMemory.
  explicit AdamW(ShardedModule model, AdamWOptions options = {},
                 std::vector<ParamGroup> groups = {}, AdamWMode mode = {});
  AdamW(AdamW&&) noexcept;
  AdamW& operator=(AdamW&&) noexcept;
  ~AdamW() override;

  /// One update of every parameter that has a gradient. Collective: new values are published to the
  /// other ranks. Ranks first compare which parameters they used, unless clip_grad_norm() did so
  /// since the last backward: an all-reduce over the shard group and one over the replicas, and,
  /// where a rank left some unused, one more of each with a number for each parameter. Throws
  /// Error(Usage) where nothing has a gradient, gradients are not summed over all ranks yet, or the
  /// state is torn. PyTorch: `step`.
  void step();
  /// The same where `found_inf` is 0; else parameters and moments stay as they are, to the bit, and
  /// the step does not count. `found_inf`: one value on the model's device, the same on every rank,
  /// such as `clip_grad_norm(model, 1.0).isfinite().logical_not()`. The host waits to know it in
  /// the next step() or steps_done(). Throws Error(Usage) also for another device or number of
  /// values, and with AdamWMode::in_backward, which has updated already. PyTorch: `found_inf` of
  /// fused optimizers.
  void step(const at::Tensor& found_inf);
  /// Forgets the gradients of the whole model, also of parameters that another optimizer updates.
  /// Not collective. PyTorch: `Module.zero_grad(set_to_none=True)`.
  void zero_grad();

  /// Sets the learning rate of every group, as a schedule does before each step. Throws
  /// Error(Usage) below 0.
  void set_lr(double lr);
  /// Sets that of one group: by place in `groups`; one more is that of the parameters in no group.
  /// Throws Error(Usage) below 0, and for a group that is not there. PyTorch:
  /// `param_groups[i]["lr"]`.
  void set_lr(size_t group, double lr);
  /// The learning rate of one group, counted and checked as in set_lr().
  [[nodiscard]] double lr(size_t group) const;
  /// Sets the learning rate of every group to `factor` times the one it was built with, so that
  /// groups of different rates keep their proportions. Throws Error(Usage) below 0. PyTorch:
  /// `torch.optim.lr_scheduler.LambdaLR`.
  void scale_lr(double factor);
  /// The options of one group as they are now, counted and checked as in set_lr(). PyTorch:
  /// `param_groups`.
  [[nodiscard]] const AdamWOptions& options(size_t group) const;
  /// How many groups there are, that of the parameters in no group counted.
  [[nodiscard]] size_t groups() const;
  /// Calls of step() so far.
  [[nodiscard]] int64_t steps_done() const override;
  /// Updates that one parameter has had: the t of its bias corrections. Less than steps_done()
  /// where it was frozen or got no gradient. Throws Error(Usage) for a name of no trainable
  /// parameter. PyTorch: `state[parameter]["step"]`.
  [[nodiscard]] int64_t steps_done(const std::string& parameter) const;
  /// For resuming: what steps_done() was, also that of every parameter.
  void set_steps_done(int64_t steps);
  /// For resuming: what steps_done(parameter) was. On every rank.
  void set_steps_done(const std::string& parameter, int64_t steps);
  /// Moments by parameter, for checkpoints: writing to the views writes the state.
  [[nodiscard]] std::vector<MomentShard> moments() const;

  [[nodiscard]] std::vector<OptimizerShard> state_shards() const override;
  [[nodiscard]] std::vector<OptimizerShard> shards_to_fill(const OptimizerKinds& kinds) override;
  void restore(int64_t steps_done, const std::vector<OptimizerShard>& shards) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// This rank's part of each trainable parameter as a flat leaf tensor [n] of fp32, n perhaps 0, for
/// an optimizer of LibTorch that treats every element by itself (SGD, AdamW, RMSprop, Adagrad; not
/// LBFGS):
///
///     torch::optim::SGD optimizer(sherd::optim_parameters(model).values(), 0.1);
///
/// The views stay the same and are valid as long as the model. After a backward their `.grad` is
/// the reduced gradient; a `.grad` that has been reset (`optimizer.zero_grad()`) makes the next
/// backward write instead of add. A parameter frozen since sharding gets none. What the optimizer
/// writes is seen by the next forward. From the first call on, ranks wait for each other at the end
/// of a backward or an evaluation, and, where `param_dtype` is not fp32, a forward begins with one
/// pass over this rank's shard. Clip with sherd::clip_grad_norm().
///
/// Collective. Memory: none. Throws Error(Usage) inside a forward or backward. PyTorch:
/// `model.parameters()` after `fully_shard`.
[[nodiscard]] torch::OrderedDict<std::string, at::Tensor> optim_parameters(ShardedModule& model);

/// Scales all gradients so that their global norm is at most `max_norm`, and returns the norm
/// before that: double [] on the model's device, the same number on every rank. There the host does
/// not wait for it; `item<double>()` does. `norm_type` is its p: 2, another number above 0, or
/// infinity for the largest magnitude. The factor is applied in the optimizer's own pass, or when
/// parameter_shards() is asked for, and at once where optim_parameters() has handed out views.
/// `max_norm` = infinity only measures. A norm that is not a number is returned, and nothing is
/// scaled; see AdamW::step() for what leaves such a step out.
///
/// Collective: one all-reduce over the shard group, and those by which AdamW::step() would compare
/// used parameters. Throws Error(Usage) for numbers that are not above 0, for gradients that are
/// not summed over all ranks yet, and with AdamWMode::in_backward. PyTorch: `clip_grad_norm_`.
at::Tensor clip_grad_norm(ShardedModule& model, double max_norm, double norm_type = 2.0);

/// PyTorch: the arguments of `torch.amp.GradScaler`.
struct GradScalerOptions {
  double init_scale = 65536;       ///< of the first step
  double growth_factor = 2;        ///< by which the scale grows, above 1
  double backoff_factor = 0.5;     ///< by which it shrinks after an overflow, between 0 and 1
  int64_t growth_interval = 2000;  ///< steps without an overflow before the scale grows
};

/// Keeps fp16 gradients from vanishing: the loss is multiplied by a scale, gradients are divided by
/// it, and a step whose gradients are not finite on some rank is left out on every rank.
///
///     scaler.scale(loss).backward();
///     scaler.unscale();                    // before clip_grad_norm, or left to step()
///     scaler.step(optimizer);
///
/// All ranks hold the same scale and take the same decisions; scale and decisions lie where the
/// model is computed, and the host waits for a device only where it asks for them. Used by the
/// thread that uses the model: nothing here locks. PyTorch: FSDP1's `ShardedGradScaler`. Paper:
/// arXiv:1710.03740.
class GradScaler {
 public:
  /// Throws Error(Usage) for numbers out of range. Not collective.
  explicit GradScaler(ShardedModule model, GradScalerOptions options = {});

  /// The loss times the scale.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the gradients by the scale. Returns whether some of them are not finite, on some rank:
  /// fp32 [] on the model's device, 1 or 0. After the last backward of a step; a second call before
  /// the next backward returns the same. Collective: one all-reduce. PyTorch: `unscale_`.
  at::Tensor unscale();
  /// Unscales where that has not been done, updates the parameters where all gradients are finite
  /// on all ranks, and else leaves all as it is (AdamW::step(found_inf)). Adapts the scale. Returns
  /// what unscale() does: 1 where nothing was updated. Collective. Throws Error(Usage) as
  /// AdamW::step() does, and with AdamWMode::in_backward.
  at::Tensor step(AdamW& optimizer);
  /// The same for an optimizer over optim_parameters(), for which the host waits to know.
  at::Tensor step(torch::optim::Optimizer& optimizer);
  /// What losses are multiplied by now; waits for a device.
  [[nodiscard]] double scale() const;
  /// The same, fp32 [] on the model's device, not waited for.
  [[nodiscard]] at::Tensor scale_tensor() const { return scale_.clone(); }
  /// For resuming: what scale() was.
  void set_scale(double scale);
  /// Steps without an overflow since the scale changed; waits for a device.
  [[nodiscard]] int64_t good_steps() const;
  /// For resuming: what good_steps() was.
  void set_good_steps(int64_t steps);

 private:
  void adapt(const at::Tensor& found_inf);

  ShardedModule model_;
  GradScalerOptions options_;
  at::Tensor scale_;              ///< fp32 [] on the model's device
  at::Tensor good_steps_;         ///< int32 [] there
  at::Tensor found_inf_;          ///< of this step, once unscaled
  int64_t unscaled_version_ = 0;  ///< of the gradients it was asked for
};

}  // namespace sherd
