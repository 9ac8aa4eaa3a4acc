#pragma once
// What a checkpoint keeps of an optimizer, whichever it is.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/sharded_module.h"

namespace torch::optim {
class Optimizer;
}

namespace sherd {

/// This rank's part of what an optimizer keeps of one parameter.
struct OptimizerShard {
  std::string parameter;  ///< qualified name
  /// By kind, in the words of `torch.optim` ("exp_avg", "momentum_buffer"): each [end − begin] of
  /// the ParameterShard of that name.
  std::map<std::string, at::Tensor> tensors;
  int64_t steps = 0;  ///< updates that the parameter has had
  /// Where not empty, `tensors` rest elsewhere (Offload): a view of one may be read, or written
  /// with `true`, while what this returns lives.
  std::function<std::shared_ptr<void>(const at::Tensor& view, bool writes)> use = {};
};

/// Which kinds of tensors a checkpoint has of each parameter.
using OptimizerKinds = std::map<std::string, std::set<std::string>>;

/// An optimizer whose state save_checkpoint() writes and load_checkpoint() restores: AdamW is one,
/// TorchOptimizerState makes one of LibTorch's optimizers, and an optimizer of your own can be one.
/// Its state has a value for each element of a parameter, cut as the parameter is. All ranks keep
/// the same kinds of the same parameters. Called by the thread that saves or loads. Learning rates
/// and other options are not state: they are the program's. PyTorch: the optimizer's part of a
/// `torch.distributed.checkpoint` state dict.
class CheckpointableOptimizer {
 public:
  virtual ~CheckpointableOptimizer() = default;

  /// Calls of step() so far.
  [[nodiscard]] virtual int64_t steps_done() const = 0;
  /// Views of what is kept now. A parameter without state may be missing. Not collective.
  [[nodiscard]] virtual std::vector<OptimizerShard> state_shards() const = 0;
  /// Tensors that a checkpoint with these kinds is to be read into, on the CPU or the model's
  /// device; nothing has changed until restore(). Throws Error(BadData) for kinds that are another
  /// optimizer's. Not collective.
  [[nodiscard]] virtual std::vector<OptimizerShard> shards_to_fill(const OptimizerKinds& kinds) = 0;
  /// Takes over `shards`, which shards_to_fill() returned and which have been filled, with their
  /// numbers of steps. Not collective.
  virtual void restore(int64_t steps_done, const std::vector<OptimizerShard>& shards) = 0;
};

/// One of LibTorch's optimizers over optim_parameters(), for checkpoints: Adam, AdamW, SGD, RMSprop
/// or Adagrad.
///
///     torch::optim::SGD optimizer(sherd::optim_parameters(model).values(), options);
///     sherd::TorchOptimizerState state(model, optimizer);
///     sherd::save_checkpoint(model, state, folder, note);
///
/// Memory: none; while a checkpoint is loaded, the new state beside the old. `optimizer` must
/// outlive it. LibTorch's optimizers count steps by parameter, and SGD not at all: steps_done() is
/// the most that any has done.
class TorchOptimizerState : public CheckpointableOptimizer {
 public:
  /// Collective, as optim_parameters(). Throws Error(Usage) for another kind of optimizer.
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
