#pragma once
// The untyped handle of a sharded model, for optimizers, checkpoints and loaders; and micro-batches
// as CUDA graphs.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/communicator.h"
#include "sherd/memory.h"
#include "sherd/world.h"

namespace sherd {

class ShardedModule;

namespace detail {
struct Engine;
struct ShardedUnit;
/// Returns the engine of a handle.
[[nodiscard]] Engine& engine_of(const ShardedModule& model);
}  // namespace detail

/// This rank's shard of one parameter. Tensors are views: writing to them writes the shard, and
/// ShardedModule::publish() makes the new values visible to the next gather. Between steps call
/// World::barrier() before writing, because a late rank may still compute with the values.
struct ParameterShard {
  std::string name;                ///< qualified name; for a tied parameter that of its first owner
  std::vector<int64_t> shape;      ///< shape of the whole parameter
  c10::ScalarType original_dtype;  ///< dtype before sharding
  bool trainable = true;           ///< whether it was trainable when sharded
  /// Elements [begin, end) of the flattened parameter; empty if begin == end.
  int64_t begin = 0;
  int64_t end = 0;  ///< see begin
  /// [end − begin]: the fp32 master. For a frozen parameter and for a bf16 master it is the shard
  /// in param_dtype. For a split master (Precision::master) it is a copy, which is not written
  /// back.
  at::Tensor value;
  /// [end − begin]: the sum in reduce_dtype. Zeros for a parameter that no rank used, in a unit
  /// whose backward ran. Undefined before a reduction and after a failed backward.
  at::Tensor gradient;
};

/// How a step accumulates its micro-batches.
struct MicroBatches {
  int count = 1;                       ///< micro-batches per step
  bool requires_gradient_sync = true;  ///< setting for all but the last
  bool requires_all_reduce = true;     ///< setting for all but the last
};

/// An untyped handle of a sharded model, for optimizers, checkpoints and loaders. Copies share the
/// model. One thread per rank uses a model at a time: nothing here locks. If ranks are threads of
/// one process (World::in_process()), each has its own model. PyTorch: `FSDPModule`.
class ShardedModule {
 public:
  /// Called by fully_shard().
  explicit ShardedModule(std::shared_ptr<detail::Engine> engine) : engine_(std::move(engine)) {}

  /// Returns the world of all ranks of the model, including replicas.
  [[nodiscard]] const World& world() const;
  /// Returns the world of all ranks of the model, including replicas.
  [[nodiscard]] World& world();
  /// Returns this rank's shard of every parameter, with the same names on every rank. The order is
  /// unit by unit, the root first, in registration order within a unit. Not collective. PyTorch:
  /// `named_parameters()` of sharded tensors.
  [[nodiscard]] std::vector<ParameterShard> parameter_shards() const;
  /// Returns pairs of another name of a tied parameter and its first name. Not collective.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> tied_names() const;

  /// Copies the masters to the shards in param_dtype after outside writes. Marks parameters built
  /// on meta as having values. Collective. Throws Error(Usage) inside with_full_parameters().
  void publish();
  /// Clears the gradients; the next backward overwrites instead of adding. Not collective. PyTorch:
  /// `optimizer.zero_grad()`.
  void zero_grad();
  /// Sets the divisor of gradient reductions; the default is the number of ranks. The same on all
  /// ranks; not collective. Throws Error(Usage) unless above 0. PyTorch:
  /// `set_gradient_divide_factor`.
  void set_gradient_divide_factor(double factor);

  /// Selects units by name ("root" is the root's); all units if unset.
  using UnitFilter = std::function<bool(const std::string& unit)>;
  /// With false, backward reduces nothing and adds gradients to an fp32 buffer of the whole unit;
  /// parameters are still gathered. The next backward with true reduces their sum. Memory: 4 bytes
  /// per element of the unit on every rank; nothing if the shard group is one rank. The same on all
  /// ranks. Not collective. With AdamWMode::in_backward, the backward throws Error(Usage). PyTorch:
  /// `set_requires_gradient_sync`, FSDP1's `no_sync`.
  void set_requires_gradient_sync(bool requires_sync, const UnitFilter& units = {});
  /// With false, on a mesh with replicas, backward reduces within the shard group only. The next
  /// backward with true also sums over the replicas. The same on all ranks. Not collective.
  /// PyTorch: `set_requires_all_reduce`.
  void set_requires_all_reduce(bool requires_all_reduce, const UnitFilter& units = {});
  /// Receives this rank's gradient shard of a unit, once per dtype of its parameters: [n] in
  /// Precision::reduce_dtype, including the unit's padding. Its writes replace the gradient.
  using AllReduceHook =
      std::function<void(const std::string& unit, const at::Tensor& gradient_shard)>;
  /// Sets a hook that backward calls after gradients are summed over all ranks and before anything
  /// reads them. It runs only if set_requires_gradient_sync and set_requires_all_reduce are true.
  /// Use it for a sum over ranks outside the World, as in fault-tolerant training.
  ///
  /// The shard includes earlier micro-batches reduced since zero_grad(). A hook has already
  /// processed those, unless set_requires_all_reduce was false for them. Every rank calls the hook
  /// for units in the same order: at the end of the backward, or before the unit's update with
  /// AdamWMode::in_backward. Parameters that no rank of the World used keep no gradient. Unset: no
  /// hook. Not collective. PyTorch: `set_all_reduce_hook`.
  void set_all_reduce_hook(const AllReduceHook& hook, const UnitFilter& units = {});
  /// With false, parameters stay gathered after backward, for the next micro-batch; the optimizer's
  /// step still reshards them. The same on all ranks. Not collective. Memory: the gathered units,
  /// until that step. PyTorch: `set_reshard_after_backward`.
  void set_reshard_after_backward(bool reshard, const UnitFilter& units = {});
  /// With false, more micro-batches of this step follow, and units stay as the strategy's
  /// Placements have them until then: with Strategy::ShardOptimizer, backward reduces nothing and
  /// parameters stay gathered, as after set_requires_gradient_sync(false) and
  /// set_reshard_after_backward(false). Changes nothing with the other strategies, and if a row is
  /// one rank. The same on all ranks. Not collective. PyTorch: `set_is_last_backward`.
  void set_is_last_backward(bool is_last);

  /// Sets whether a unit frees its parameters between its forward and its backward, from now on.
  /// The same on all ranks. Not collective. Throws Error(Usage) inside a forward, a backward or
  /// with_full_parameters(), and if the model has a reshard_after_forward_size. PyTorch:
  /// `set_reshard_after_forward`.
  void set_reshard_after_forward(bool reshard, const UnitFilter& units = {});
  /// With false, backward does not gather the unit. This saves a gather if no gradient needs its
  /// parameters (an embedding). A backward that needs them nevertheless fails as any other use of a
  /// sharded parameter does. The same on all ranks. Not collective. PyTorch:
  /// `set_unshard_in_backward`.
  void set_unshard_in_backward(bool unshard, const UnitFilter& units = {});
  /// Gathers units now, so that their parameters can be read in the module, in `param_dtype`, and
  /// their next forward need not wait. They stay gathered until that forward or its backward frees
  /// them (reshard_after_forward), until reshard(), or until an optimizer's step. To write
  /// parameters use with_full_parameters(). Collective. Memory: the gathered units; several may
  /// exceed planned_peak_bytes(). Throws Error(Usage) inside a forward, a backward or
  /// with_full_parameters(), and if values are missing or torn. PyTorch: `FSDPModule.unshard`.
  void unshard(const UnitFilter& units = {});
  /// Frees the parameters of units again. Not collective. Throws Error(Usage) inside a forward, a
  /// backward or with_full_parameters(). PyTorch: `FSDPModule.reshard`.
  void reshard(const UnitFilter& units = {});

  /// Returns the units as text, one line per dtype of a unit's trainable and of its frozen
  /// parameters. A line has the unit, the number of parameters and of elements, the dtype, the
  /// gathered bytes and the bytes on this rank. Not collective.
  [[nodiscard]] std::string plan() const;
  /// Returns one line with the dtypes of parameters, gradients on the wire, gradient shards and
  /// masters. If a kind has several dtypes, it lists the number of elements of each. Not
  /// collective.
  [[nodiscard]] std::string dtypes() const;
  /// Returns the engine's bytes on this rank.
  [[nodiscard]] const MemoryLedger& memory() const;
  /// Returns the I/O method for state on disk (ShardOptions::offload): "io_uring, direct"; empty if
  /// none is on disk.
  [[nodiscard]] std::string offload_transfers() const;
  /// Returns the maximum bytes of offloaded state in memory at a time, during an update or a save.
  [[nodiscard]] int64_t offload_slot_bytes() const;
  /// Returns the maximum host bytes at a time for state on disk, for ranks on devices other than
  /// CPUs. These pages are not pinned, and memory() does not include them.
  [[nodiscard]] int64_t offload_page_bytes() const;
  /// Returns the maximum of memory() during training steps, known before the first step. It
  /// includes what is held now (and the moments, once the optimizer exists), gradients and their
  /// sums, gathered units and reduce buffers. It excludes activations, and evaluation in full
  /// precision. It assumes that each unit is used once per step; AdamWMode::in_backward needs less.
  /// Not collective. PyTorch: none.
  [[nodiscard]] int64_t planned_peak_bytes(const MicroBatches& micro_batches = {}) const;
  /// Sets the peak of memory() to the current bytes. Not collective.
  void reset_peak_memory();
  /// Returns the gathers, reductions and bytes so far. Not collective.
  [[nodiscard]] Communicator::Counts counts() const;

 protected:
  /// Returns the unit that calls of the handle gather.
  [[nodiscard]] detail::ShardedUnit root_unit() const;
  std::shared_ptr<detail::Engine> engine_;  ///< shared by all handles of the model

 private:
  friend detail::Engine& detail::engine_of(const ShardedModule& model);
};

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
