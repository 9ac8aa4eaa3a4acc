#pragma once
// Captures micro-batches as CUDA graphs and replays them with one launch each.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/sharded_module.h"

namespace sherd {

/// Runs micro-batches of a sharded model and captures recurring ones as CUDA graphs. A graph
/// replaces the launches of forward, backward, gathers and reductions, some dozens per layer, by
/// one. Use it for small models and short samples, where the host cannot keep the device busy. A
/// graph launches the same kernels, so results have the same bits if those kernels are
/// deterministic. Everything between micro-batches stays the same: optimizers, clipping,
/// evaluation, checkpoints.
///
///     sherd::MicroBatchGraphs graphs(model);
///     at::Tensor loss = graphs.run({x, y}, [&](const std::vector<at::Tensor>& in) {
///       at::Tensor loss = at::mse_loss(model(in[0]), in[1]);
///       loss.backward();
///       return loss.detach();
///     });
///
/// A micro-batch *recurs* if shapes and dtypes of the inputs are the same on every rank as before,
/// `on_host` is the same, and the model accumulates in the same way. The first micro-batch of a
/// step and later ones are therefore two different ones. The class runs a micro-batch without a
/// graph at least once, until the engine allocates nothing more for it. It captures the next one
/// and replays the graph from then on.
///
/// Host work inside a micro-batch is not repeated: control flow, host numbers (pass a loss divisor
/// as a tensor), hooks, Unit::train(). Code that waits for the device cannot be captured, nor can
/// copies of host tensors to the device (to_device()). An observer (CollectiveObserver) sees the
/// capture, but no replay.
///
/// PyTorch: `torch.cuda.CUDAGraph`, `torch.cuda.make_graphed_callables`.
class MicroBatchGraphs {
 public:
  /// Runs forward and backward of one micro-batch on its device inputs and returns a device tensor,
  /// such as the loss. Everything else it reads must stay alive and in place. The graph keeps a
  /// copy of the captured function.
  using MicroBatch = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

  /// `max_graphs`: the maximum number of graphs, at least 1; the least recently used one is
  /// dropped. Graphs share memory: as much as the largest needs for activations, in addition to
  /// micro-batches without a graph. The same on all ranks; not collective. Throws Error(Usage) for
  /// a model on CPUs, for a device that does not support graphs, for ShardOptions::debug, for
  /// `ignored` parameters, and if more than masters and moments is offloaded.
  explicit MicroBatchGraphs(ShardedModule model, int64_t max_graphs = 8);
  MicroBatchGraphs(MicroBatchGraphs&&) noexcept;
  MicroBatchGraphs& operator=(MicroBatchGraphs&&) noexcept;
  ~MicroBatchGraphs();

  /// Runs a micro-batch. It copies `inputs`, on any device, into tensors with stable addresses;
  /// their shapes may differ between ranks. `on_host`: whatever else the micro-batch depends on,
  /// such as document boundaries. The result is valid until the next run(). Pass the same function
  /// each time: a replay does not call it. Must not be called inside a forward or backward.
  ///
  /// Collective: in addition to the micro-batch's own exchanges, the ranks compare their
  /// micro-batches over the world. Throws Error(Usage), on every rank and with gradients unchanged,
  /// for what cannot be captured:
  /// - LibTorch's optimizers, AdamWMode::in_backward and all-reduce hooks;
  /// - set_reshard_after_backward(false), and set_requires_all_reduce(false) on a mesh with
  ///   replicas;
  /// - random numbers in checkpointed units;
  /// - a micro-batch that waits for the device or changes the order of units.
  ///
  /// An exception of `micro_batch` passes unchanged; during a capture it becomes an Error.
  at::Tensor run(const std::vector<at::Tensor>& inputs, const MicroBatch& micro_batch,
                 const std::string& on_host = {});

  /// Work of run() so far; the same on every rank.
  struct Counts {
    int64_t as_they_are = 0;  ///< micro-batches run without a graph
    int64_t captures = 0;     ///< captured graphs
    int64_t launches = 0;     ///< graph launches
  };
  /// Returns what run() has done so far. Not collective.
  [[nodiscard]] Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
