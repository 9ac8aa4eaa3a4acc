#pragma once
// Micro-batches as graphs of the device: captured once, then run by one launch of the host.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/sharded_module.h"

namespace sherd {

/// Runs micro-batches of a sharded model, and captures those that come again as graphs of the
/// device (CUDA graphs): the launches of forward, backward, gathers and reductions, some dozens a
/// layer, become one. For small models and short samples, where the host does not keep up with the
/// device. A graph launches the same kernels: results have the same bits, if those kernels repeat
/// theirs. Between micro-batches all is as without: optimizers,
/// clipping, evaluation, checkpoints.
///
///     sherd::MicroBatchGraphs graphs(model);
///     at::Tensor loss = graphs.run({x, y}, [&](const std::vector<at::Tensor>& in) {
///       at::Tensor loss = at::mse_loss(model(in[0]), in[1]);
///       loss.backward();
///       return loss.detach();
///     });
///
/// A micro-batch *comes again* where all ranks have inputs of the shapes and dtypes that they had
/// then, `on_host` is the same, and the model accumulates in the same way: the first micro-batch of
/// a step and later ones are two. It is run as it is until the engine allocates nothing for it any
/// more, at least once, is captured when it comes next, and launched from then on.
///
/// What the host does in a micro-batch is not done again: control flow, numbers of the host (a loss
/// divided by a count: pass that as a tensor), hooks, what Unit::train() says. What waits for the
/// device cannot be captured, nor what moves tensors of the host there (to_device()). Observers
/// (CollectiveObserver) are told of the capture and of no launch.
///
/// PyTorch: `torch.cuda.CUDAGraph`, `torch.cuda.make_graphed_callables`.
class MicroBatchGraphs {
 public:
  /// Forward and backward of one micro-batch, given its inputs on the device; returns a tensor
  /// there, such as the loss. What it reads beside inputs and model is to stay: a copy of the
  /// function that was captured is kept with the graph.
  using MicroBatch = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

  /// `most`: how many graphs are kept, at least 1; the one that was not run for longest goes. They
  /// share memory: what the largest needs for activations, beside what micro-batches without a
  /// graph do. The same on all ranks; not collective. Throws Error(Usage) for a model on CPUs, or
  /// on a device that keeps no graphs; one with ShardOptions::debug or `ignored` parameters; and
  /// one of which more than masters and moments is offloaded.
  explicit MicroBatchGraphs(ShardedModule model, int64_t most = 8);
  MicroBatchGraphs(MicroBatchGraphs&&) noexcept;
  MicroBatchGraphs& operator=(MicroBatchGraphs&&) noexcept;
  ~MicroBatchGraphs();

  /// Runs a micro-batch. `inputs` are copied into tensors that stay, from wherever they lie; their
  /// shapes may differ between ranks. `on_host`: what else the micro-batch depends on, such as
  /// where documents begin. What is returned is good until the next run(). The same function each
  /// time: of a micro-batch that comes again it is not called. Not inside a forward or backward.
  /// Collective: beside the micro-batch's own exchanges the ranks compare what comes, by the
  /// world's. Throws Error(Usage) for what cannot be captured, on every rank, which leaves
  /// gradients as they were: LibTorch's optimizers, AdamWMode::in_backward, all-reduce hooks,
  /// set_reshard_after_backward(false), set_requires_all_reduce(false) on a mesh with replicas,
  /// random numbers in checkpointed units, a micro-batch that waits for the device or runs units in
  /// another order than before. What `micro_batch` throws passes, but in a capture, where it
  /// becomes an Error.
  at::Tensor run(const std::vector<at::Tensor>& inputs, const MicroBatch& micro_batch,
                 const std::string& on_host = {});

  /// What run() has done so far; the same on every rank.
  struct Counts {
    int64_t as_they_are = 0;  ///< micro-batches without a graph
    int64_t captures = 0;     ///< of graphs
    int64_t launches = 0;     ///< of graphs
  };
  /// What run() has done so far. Not collective.
  [[nodiscard]] Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
