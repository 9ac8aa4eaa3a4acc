#pragma once
// The fused AdamW over shards and global-norm clipping.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/ordered_dict.h>

#include "sherd/fully_shard.h"

namespace sherd {

/// PyTorch: the arguments of `torch.optim.AdamW`.
struct AdamWOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  ///< decoupled: parameters shrink by lr × weight_decay a step
};

/// Parameters with options of their own. The first group whose `contains` accepts a name takes it.
struct ParamGroup {
  std::function<bool(const std::string& name)> contains;
  AdamWOptions options;
};

/// This rank's part of one parameter's moments, as views.
struct MomentShard {
  std::string name;
  at::Tensor exp_avg;     ///< [end − begin] of the ParameterShard of that name, fp32
  at::Tensor exp_avg_sq;  ///< the same
};

/// AdamW that reads the reduced gradients and writes master, moments and the travelling shard in
/// one pass.
///
/// Memory: two fp32 moments of this rank's shard. What belongs to a unit whose backward did not run
/// since zero_grad() is left alone, and so is a parameter that has been frozen since sharding
/// (`requires_grad_(false)` on every rank); any other parameter without gradient counts as having
/// zeros. PyTorch: `torch.optim.AdamW(fused=True)`.  Paper: arXiv:1711.05101.
class AdamW {
 public:
  /// Builds moments of zero. Not collective. Parameters in no group get `options`.
  explicit AdamW(ShardedModule model, AdamWOptions options = {},
                 std::vector<ParamGroup> groups = {});
  AdamW(AdamW&&) noexcept;
  AdamW& operator=(AdamW&&) noexcept;
  ~AdamW();

  /// One update of every parameter that has a gradient. Collective: the new values are published to
  /// the other ranks.
  void step();
  /// Forgets gradients. PyTorch: `zero_grad(set_to_none=True)`.
  void zero_grad();

  /// Sets the learning rate of every group, as a schedule does before each step.
  void set_lr(double lr);
  [[nodiscard]] int64_t steps_done() const;
  void set_steps_done(int64_t steps);
  /// Moments by parameter, for checkpoints: writing to the views writes the state.
  [[nodiscard]] std::vector<MomentShard> moments() const;

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

/// Scales all gradients so that their global 2-norm is at most `max_norm`, and returns the norm
/// before that: the same number on every rank. The factor is applied in the optimizer's own pass,
/// or when parameter_shards() is asked for, and at once where optim_parameters() has handed out
/// views. Collective: one all-reduce. `max_norm` = infinity only
/// measures. PyTorch: `clip_grad_norm_`.
double clip_grad_norm(ShardedModule& model, double max_norm);

}  // namespace sherd
