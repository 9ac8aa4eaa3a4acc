#pragma once
// The fused AdamW over shards, clipping by the global norm, and the interface of any optimizer
// whose state is saved and loaded.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include "sherd/sharded_module.h"

namespace torch::optim {
class Optimizer;
}

namespace sherd {

/// This rank's shard of one parameter's optimizer state.
struct OptimizerShard {
  std::string parameter;  ///< qualified name of the parameter
  /// Tensors by kind, with the names of `torch.optim` ("exp_avg", "momentum_buffer"). Each is [end
  /// − begin] of the ParameterShard of the same name.
  std::map<std::string, at::Tensor> tensors;
  int64_t steps = 0;  ///< number of updates of the parameter
  /// If set, `tensors` are stored elsewhere (Offload). Views may then be read, or written with
  /// `true`, while the returned object lives.
  std::function<std::shared_ptr<void>(const at::Tensor& view, bool writes)> use = {};
};

/// The kinds of tensors that a checkpoint has per parameter.
using OptimizerKinds = std::map<std::string, std::set<std::string>>;

/// An optimizer whose state save_checkpoint() writes and load_checkpoint() restores. AdamW is one;
/// TorchOptimizerState wraps LibTorch's optimizers; your own optimizer can derive from it. The
/// state has one value per element of a parameter, sharded as the parameter is. All ranks must keep
/// the same kinds for the same parameters. The thread that saves or loads calls the methods.
/// Learning rates and other options are not part of the state: the program sets them. PyTorch: the
/// optimizer's part of a `torch.distributed.checkpoint` state dict.
class CheckpointableOptimizer {
 public:
  virtual ~CheckpointableOptimizer() = default;

  /// Returns the number of calls of step() so far.
  [[nodiscard]] virtual int64_t steps_done() const = 0;
  /// Returns views of the current state. A parameter without state may be missing. Not collective.
  [[nodiscard]] virtual std::vector<OptimizerShard> state_shards() const = 0;
  /// Returns tensors, on the CPU or the model's device, for the state of a checkpoint with these
  /// kinds. Changes nothing before restore(). Throws Error(BadData) for kinds of another optimizer.
  /// Not collective.
  [[nodiscard]] virtual std::vector<OptimizerShard> shards_to_fill(const OptimizerKinds& kinds) = 0;
  /// Takes over `shards`: the filled result of shards_to_fill(), with the numbers of steps. Not
  /// collective.
  virtual void restore(int64_t steps_done, const std::vector<OptimizerShard>& shards) = 0;
};

/// Makes one of LibTorch's optimizers over optim_parameters() checkpointable: Adam, AdamW, SGD,
/// RMSprop or Adagrad.
///
///     torch::optim::SGD optimizer(sherd::optim_parameters(model).values(), options);
///     sherd::TorchOptimizerState state(model, optimizer);
///     sherd::save_checkpoint(model, state, folder, note);
///
/// Memory: none; during a load, the new state in addition to the old. `optimizer` must outlive it.
/// LibTorch's optimizers count steps per parameter, and SGD does not count: steps_done() is the
/// maximum over the parameters.
class TorchOptimizerState : public CheckpointableOptimizer {
 public:
  /// Collective, as optim_parameters() is. Throws Error(Usage) for an unsupported type of
  /// optimizer.
  TorchOptimizerState(ShardedModule& model, torch::optim::Optimizer& optimizer);
  ~TorchOptimizerState() override;
  TorchOptimizerState(TorchOptimizerState&&) noexcept;
  TorchOptimizerState& operator=(TorchOptimizerState&&) noexcept;

  [[nodiscard]] int64_t steps_done() const override;
  [[nodiscard]] std::vector<OptimizerShard> state_shards() const override;
  [[nodiscard]] std::vector<OptimizerShard> shards_to_fill(const OptimizerKinds& kinds) override;
  void restore(int64_t steps_done, const std::vector<OptimizerShard>& shards) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd

namespace torch::optim {
class Optimizer;
}

namespace sherd {

/// Hyperparameters of AdamW. PyTorch: the arguments of `torch.optim.AdamW`.
struct AdamWOptions {
  double lr = 1e-3;                                ///< learning rate
  std::pair<double, double> betas = {0.9, 0.999};  ///< decay rates of the two moments
  double eps = 1e-8;           ///< added to the square root of the second moment
  double weight_decay = 1e-2;  ///< decoupled: each step shrinks parameters by lr × weight_decay
};

/// Parameters with options of their own. A parameter belongs to the first group whose `contains`
/// accepts its name.
struct ParamGroup {
  std::function<bool(const std::string& name)>
      contains;          ///< returns true for the qualified names in this group
  AdamWOptions options;  ///< options of the group's parameters
};

/// How an AdamW stores its state, and when it updates.
struct AdamWMode {
  /// kFloat, or kBFloat16 for half the memory. Moments in bf16 are rounded stochastically, so small
  /// changes add up in expectation; docs/guide/precision.md gives the cost.
  c10::ScalarType moments_dtype = c10::ScalarType::Float;
  /// Updates each unit in backward, as soon as its gradients are summed; step() then only ends the
  /// step. The gradient shards of all units are therefore never held at the same time. Excludes
  /// everything that needs all gradients first: clipping, accumulation, unscaling. A backward that
  /// fails after the first update leaves parameters and optimizer state torn until a checkpoint is
  /// loaded. PyTorch: an optimizer in `register_post_accumulate_grad_hook`.
  bool in_backward = false;
  /// Selects the parameters to update; the others have no moments and stay unchanged. Unset: all.
  /// The same on every rank. PyTorch: the parameters that an optimizer is given.
  std::function<bool(const std::string& name)> contains = {};
};

/// This rank's shard of one parameter's moments, as views. For moments on disk (Offload) they are
/// copies, which are not written back.
struct MomentShard {
  std::string name;    ///< qualified name of the parameter
  at::Tensor exp_avg;  ///< [end − begin] of the ParameterShard of the same name, in moments_dtype
  at::Tensor exp_avg_sq;  ///< as exp_avg
};

/// AdamW that reads the reduced gradients and writes master, moments and the shard in param_dtype
/// in one pass.
///
/// Memory: two moments for this rank's shards of the parameters that it updates. It skips a
/// parameter without a gradient on any rank since zero_grad(), and one frozen after sharding
/// (`requires_grad_(false)` on every rank). Neither moments nor weight decay change a skipped
/// parameter, and its bias correction does not count the step. With AdamWMode::in_backward the
/// ranks cannot compare which parameters they used. There, a parameter without a gradient in a unit
/// whose backward ran counts as having a zero gradient.
///
/// Must be used on the thread that uses the model: nothing here locks. PyTorch:
/// `torch.optim.AdamW(fused=True)`.  Paper: arXiv:1711.05101.
class AdamW : public CheckpointableOptimizer {
 public:
  /// Moments start at zero. Not collective. Throws Error: Usage for numbers out of range, an
  /// unsupported moments_dtype, a `contains` that accepts nothing, or a second optimizer if one
  /// updates in backward; OutOfMemory.
  explicit AdamW(ShardedModule model, AdamWOptions options = {},
                 std::vector<ParamGroup> groups = {}, AdamWMode mode = {});
  AdamW(AdamW&&) noexcept;
  AdamW& operator=(AdamW&&) noexcept;
  ~AdamW() override;

  /// Updates every parameter that has a gradient. Collective: publishes the new values to the other
  /// ranks. Ranks first compare which parameters they used, unless clip_grad_norm() did so since
  /// the last backward. This takes one all-reduce over the shard group and one over the replicas;
  /// if a rank left some unused, one more of each with one number per parameter. Throws
  /// Error(Usage) if nothing has a gradient, if gradients are not summed over all ranks yet, or if
  /// the state is torn. PyTorch: `step`.
  void step();
  /// Runs step() if `found_inf` is 0. Otherwise parameters and moments keep their bits, and the
  /// step does not count. `found_inf`: one value on the model's device, equal on all ranks, such as
  /// `clip_grad_norm(model, 1.0).isfinite().logical_not()`. The host waits for the value in the
  /// next step() or steps_done(). Also throws Error(Usage) for another device or number of values,
  /// and with AdamWMode::in_backward, which has updated already. PyTorch: `found_inf` of fused
  /// optimizers.
  void step(const at::Tensor& found_inf);
  /// Clears the gradients of the parameters that this optimizer updates (AdamWMode::contains); the
  /// same on every rank. ShardedModule::zero_grad() also clears those that no optimizer updates,
  /// which clip_grad_norm() and GradScaler read. Not collective. PyTorch:
  /// `optimizer.zero_grad(set_to_none=True)`.
  void zero_grad();

  /// Sets the learning rate of every group; a schedule calls it before each step. Throws
  /// Error(Usage) below 0.
  void set_lr(double lr);
  /// Sets the learning rate of one group by its index in `groups`; the next index after the last is
  /// for parameters in no group. Throws Error(Usage) below 0, and for an invalid index. PyTorch:
  /// `param_groups[i]["lr"]`.
  void set_lr(size_t group, double lr);
  /// Returns the learning rate of one group, indexed and checked as in set_lr().
  [[nodiscard]] double lr(size_t group) const;
  /// Sets the learning rate of every group to `factor` times its initial value, so that groups keep
  /// their ratios. Throws Error(Usage) below 0. PyTorch: `torch.optim.lr_scheduler.LambdaLR`.
  void scale_lr(double factor);
  /// Returns the current options of one group, indexed and checked as in set_lr(). PyTorch:
  /// `param_groups`.
  [[nodiscard]] const AdamWOptions& options(size_t group) const;
  /// Returns the number of groups, including the one for parameters in no group.
  [[nodiscard]] size_t groups() const;
  /// Returns the number of updates so far; steps that `found_inf` skipped do not count.
  [[nodiscard]] int64_t steps_done() const override;
  /// Returns the number of updates of one parameter: the t of its bias correction. It is less than
  /// steps_done() if the parameter was frozen or had no gradient in some steps. Throws Error(Usage)
  /// for a name of no trainable parameter. PyTorch: `state[parameter]["step"]`.
  [[nodiscard]] int64_t steps_done(const std::string& parameter) const;
  /// Restores steps_done(), and the count of every parameter, on resume.
  void set_steps_done(int64_t steps);
  /// Restores steps_done(parameter) on resume. Must be called on every rank.
  void set_steps_done(const std::string& parameter, int64_t steps);
  /// Returns the moments per parameter, for checkpoints. Writing to the views writes the state.
  [[nodiscard]] std::vector<MomentShard> moments() const;

  [[nodiscard]] std::vector<OptimizerShard> state_shards() const override;
  [[nodiscard]] std::vector<OptimizerShard> shards_to_fill(const OptimizerKinds& kinds) override;
  void restore(int64_t steps_done, const std::vector<OptimizerShard>& shards) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns this rank's shard of each trainable parameter as a flat fp32 leaf tensor [n], where n
/// may be 0. For a LibTorch optimizer that treats every element independently (SGD, AdamW, RMSprop,
/// Adagrad; not LBFGS):
///
///     torch::optim::SGD optimizer(sherd::optim_parameters(model).values(), 0.1);
///
/// Repeated calls return the same views, valid as long as the model. After a backward their `.grad`
/// is the reduced gradient. If `.grad` was reset (`optimizer.zero_grad()`), the next backward
/// overwrites instead of adding. A parameter frozen after sharding gets no `.grad`. The next
/// forward uses what the optimizer wrote. From the first call on, ranks wait for each other at the
/// end of a backward or an evaluation. Unless `param_dtype` is fp32, a forward then begins with one
/// pass over this rank's shard. Clip with sherd::clip_grad_norm().
///
/// Collective. Memory: none. Throws Error(Usage) inside a forward or backward. PyTorch:
/// `model.parameters()` after `fully_shard`.
[[nodiscard]] torch::OrderedDict<std::string, at::Tensor> optim_parameters(ShardedModule& model);

/// Scales all gradients so that their global norm is at most `max_norm`. Returns the norm before
/// scaling: double [] on the model's device, equal on every rank. On a GPU the host does not wait
/// for it; `item<double>()` does. `norm_type` is the p of the norm: 2, another number above 0, or
/// infinity for the largest magnitude. `max_norm` = infinity only measures. The optimizer's own
/// pass applies the factor, or parameter_shards() if called earlier; after optim_parameters() it is
/// applied at once. A norm that is not a number is returned and nothing is scaled;
/// AdamW::step(found_inf) can skip such a step.
///
/// Collective: one all-reduce over the shard group, plus those by which AdamW::step() would compare
/// used parameters. Throws Error(Usage) for numbers that are not above 0, for gradients that are
/// not summed over all ranks yet, and with AdamWMode::in_backward. PyTorch: `clip_grad_norm_`.
at::Tensor clip_grad_norm(ShardedModule& model, double max_norm, double norm_type = 2.0);

/// Settings of a GradScaler. PyTorch: the arguments of `torch.amp.GradScaler`.
struct GradScalerOptions {
  double init_scale = 65536;       ///< scale of the first step
  double growth_factor = 2;        ///< factor by which the scale grows, above 1
  double backoff_factor = 0.5;     ///< factor after an overflow, between 0 and 1
  int64_t growth_interval = 2000;  ///< steps without an overflow before the scale grows
};

/// Keeps fp16 gradients from vanishing. It multiplies the loss by a scale and divides the gradients
/// by it. If gradients are not finite on any rank, every rank skips the step.
///
///     scaler.scale(loss).backward();
///     scaler.unscale();                    // before clip_grad_norm, or left to step()
///     scaler.step(optimizer);
///
/// All ranks hold the same scale and take the same decisions. Scale and decisions are stored on the
/// model's device, and the host waits for the device only where stated. Must be used on the thread
/// that uses the model: nothing here locks. PyTorch: FSDP1's `ShardedGradScaler`. Paper:
/// arXiv:1710.03740.
class GradScaler {
 public:
  /// Throws Error(Usage) for numbers out of range. Not collective.
  explicit GradScaler(ShardedModule model, GradScalerOptions options = {});

  /// Returns the loss times the scale.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the gradients by the scale. Returns 1 if some gradients are not finite on any rank,
  /// else 0: fp32 [] on the model's device. Call it after the last backward of a step; a second
  /// call before the next backward returns the same. Collective: one all-reduce. PyTorch:
  /// `unscale_`.
  at::Tensor unscale();
  /// Unscales the gradients unless unscale() has done so, and updates the parameters if all
  /// gradients are finite on all ranks (AdamW::step(found_inf)). Otherwise it leaves everything
  /// unchanged. Adapts the scale. Returns the result of unscale(): 1 if nothing was updated.
  /// Collective. Throws Error(Usage) as AdamW::step() does, and with AdamWMode::in_backward.
  at::Tensor step(AdamW& optimizer);
  /// As above, for an optimizer over optim_parameters(). The host waits for the decision.
  at::Tensor step(torch::optim::Optimizer& optimizer);
  /// Returns the current scale; waits for the device.
  [[nodiscard]] double scale() const;
  /// Returns the current scale as fp32 [] on the model's device, without a wait.
  [[nodiscard]] at::Tensor scale_tensor() const { return scale_.clone(); }
  /// Restores scale() on resume.
  void set_scale(double scale);
  /// Returns the number of steps without overflow since the last change of scale; waits for the
  /// device.
  [[nodiscard]] int64_t good_steps() const;
  /// Restores good_steps() on resume.
  void set_good_steps(int64_t steps);

 private:
  void adapt(const at::Tensor& found_inf);

  ShardedModule model_;
  GradScalerOptions options_;
  at::Tensor scale_;              ///< fp32 [] on the model's device
  at::Tensor good_steps_;         ///< int32 [] there
  at::Tensor found_inf_;          ///< result for this step, once unscaled
  int64_t unscaled_version_ = 0;  ///< version of the gradients it belongs to
};

}  // namespace sherd
