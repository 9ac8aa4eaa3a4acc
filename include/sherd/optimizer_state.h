#pragma once
// The optimizer state in a checkpoint, for any optimizer.

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
