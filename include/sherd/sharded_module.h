#pragma once
// The handle of a sharded model without its type: what optimizers, checkpoints and loaders need.

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
/// The engine behind a handle.
[[nodiscard]] Engine& engine_of(const ShardedModule& model);
}  // namespace detail

/// The part of one parameter that this rank holds. Tensors are views: writing to them writes the
/// shard, and ShardedModule::publish() makes what was written visible to the next gather. Between
/// steps call World::barrier() before writing: a rank that is late may still compute with the
/// values.
struct ParameterShard {
  std::string name;                ///< qualified name; a tied parameter has that of its first owner
  std::vector<int64_t> shape;      ///< of the whole parameter
  c10::ScalarType original_dtype;  ///< before sharding
  bool trainable = true;           ///< at sharding time
  int64_t begin =
      0;            ///< elements [begin, end) of the flattened parameter; empty where begin == end
  int64_t end = 0;  ///< see begin
  /// [end − begin]: fp32 master; of a frozen parameter, and of a master in bf16, the travelling
  /// shard; of a split master (Precision::master) a copy, which is not written back.
  at::Tensor value;
  /// [end − begin] sum, in reduce_dtype; zeros of a parameter that no rank used, in a unit whose
  /// backward ran; undefined before a reduction, and after a backward that failed.
  at::Tensor gradient;
};

/// How the micro-batches of a step are accumulated.
struct MicroBatches {
  int count = 1;                       ///< in a step
  bool requires_gradient_sync = true;  ///< as set for all of them but the last
  bool requires_all_reduce = true;     ///< as set for all of them but the last
};

/// A sharded model without its type: what optimizers, checkpoints and loaders need. A handle;
/// copies share the model. One thread a rank uses a model at a time: nothing here locks. Ranks that
/// are threads of one process (World::in_process()) each have a model of their own. PyTorch:
/// `FSDPModule`.
class ShardedModule {
 public:
  /// Made by fully_shard().
  explicit ShardedModule(std::shared_ptr<detail::Engine> engine) : engine_(std::move(engine)) {}

  /// The ranks that the model is sharded over, replicas included.
  [[nodiscard]] const World& world() const;
  /// The ranks that the model is sharded over, replicas included.
  [[nodiscard]] World& world();
  /// This rank's part of every parameter, unit by unit, the root's first, in registration order
  /// within a unit: the same names on every rank. Not collective. PyTorch: `named_parameters()` of
  /// sharded tensors.
  [[nodiscard]] std::vector<ParameterShard> parameter_shards() const;
  /// Other names of tied parameters, each with the name it stands for. Not collective.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> tied_names() const;

  /// Rewrites the travelling shards from the masters after values were written from outside.
  /// Parameters built on meta count as having values from then on. Collective. Throws Error(Usage)
  /// inside with_full_parameters().
  void publish();
  /// Forgets gradients; the next backward writes instead of adding. Not collective. PyTorch:
  /// `optimizer.zero_grad()`.
  void zero_grad();
  /// By how much gradients are divided when they are reduced; the number of ranks unless set. The
  /// same on all ranks; not collective. Throws Error(Usage) unless above 0. PyTorch:
  /// `set_gradient_divide_factor`.
  void set_gradient_divide_factor(double factor);

  /// Which units a setting is for, by name ("root" is the root's); all of them where it is unset.
  using UnitFilter = std::function<bool(const std::string& unit)>;
  /// false: backward reduces nothing and adds gradients to an fp32 buffer of the whole unit
  /// (parameters are still gathered); the next backward with true reduces their sum. Memory: 4
  /// bytes for each element of the unit on every rank; none more where the shard group is one rank.
  /// The same on all ranks. Not collective. Not with AdamWMode::in_backward: backward then throws
  /// Error(Usage). PyTorch: `set_requires_gradient_sync`, FSDP1's `no_sync`.
  void set_requires_gradient_sync(bool requires_sync, const UnitFilter& units = {});
  /// false, on a mesh with replicas: backward reduces within the shard group only; the next one
  /// with true sums over the replicas as well. The same on all ranks. Not collective. PyTorch:
  /// `set_requires_all_reduce`.
  void set_requires_all_reduce(bool requires_all_reduce, const UnitFilter& units = {});
  /// Is given this rank's gradient shard of a unit, [n] in Precision::reduce_dtype with the unit's
  /// padding, once for each dtype of its parameters; what it writes there is the gradient.
  using AllReduceHook =
      std::function<void(const std::string& unit, const at::Tensor& gradient_shard)>;
  /// Calls `hook` in backward, when gradients have been summed over all ranks (so only where
  /// set_requires_gradient_sync and set_requires_all_reduce are true) and before anything reads
  /// them: for a sum over ranks that the World does not have, as fault-tolerant training takes it.
  /// The shard holds earlier micro-batches that were reduced since zero_grad(), and a hook has seen
  /// them too, unless set_requires_all_reduce was false for them. Units are called in the same
  /// order on every rank: at the end of the backward, or, with AdamWMode::in_backward, before the
  /// unit's update. Parameters that no rank of the World used stay without a gradient. Unset: no
  /// hook. Not collective. PyTorch: `set_all_reduce_hook`.
  void set_all_reduce_hook(const AllReduceHook& hook, const UnitFilter& units = {});
  /// false: parameters stay gathered after backward, for the next micro-batch. The optimizer's step
  /// reshards them all the same. The same on all ranks. Not collective. Memory: the gathered units,
  /// until that step. PyTorch: `set_reshard_after_backward`.
  void set_reshard_after_backward(bool reshard, const UnitFilter& units = {});

  /// Whether parameters are freed between the unit's forward and its backward, from now on. The
  /// same on all ranks. Not collective. Throws Error(Usage) inside a forward, a backward or
  /// with_full_parameters(), and where the model has a reshard_after_forward_size. PyTorch:
  /// `set_reshard_after_forward`.
  void set_reshard_after_forward(bool reshard, const UnitFilter& units = {});
  /// false: backward does not gather the unit, which saves a gather where no gradient needs its
  /// parameters (an embedding). A backward that needs them all the same ends as any other use of a
  /// sharded parameter. The same on all ranks. Not collective. PyTorch: `set_unshard_in_backward`.
  void set_unshard_in_backward(bool unshard, const UnitFilter& units = {});
  /// Gathers units now, so that their parameters can be read in the module, in `param_dtype`, and
  /// their next forward need not wait: until that forward or its backward frees them, as
  /// reshard_after_forward says, or reshard(), or an optimizer's step. Collective. Memory: the
  /// gathered units, beside planned_peak_bytes() where several are. Throws Error(Usage) inside a
  /// forward, a backward or with_full_parameters(), and where values are torn or not there yet.
  /// PyTorch: `FSDPModule.unshard`; to write parameters use with_full_parameters().
  void unshard(const UnitFilter& units = {});
  /// Frees the parameters of units again. Not collective. Throws Error(Usage) inside a forward, a
  /// backward or with_full_parameters(). PyTorch: `FSDPModule.reshard`.
  void reshard(const UnitFilter& units = {});

  /// The units as text, a line for each dtype of a unit's trainable and of its frozen parameters:
  /// unit, number of parameters and of elements, dtype, bytes gathered, bytes on this rank. Not
  /// collective.
  [[nodiscard]] std::string plan() const;
  /// One line with the dtypes of parameters, travelling gradients, sums of gradients (the gradient
  /// shards) and masters, with the number of elements of each where there are several. Not
  /// collective.
  [[nodiscard]] std::string dtypes() const;
  /// The engine's bytes on this rank.
  [[nodiscard]] const MemoryLedger& memory() const;
  /// What moves what rests on a disk (ShardOptions::offload): "io_uring, direct"; empty where
  /// nothing does.
  [[nodiscard]] std::string offload_transfers() const;
  /// The most of it that is in memory at a time, while it is updated or saved.
  [[nodiscard]] int64_t offload_slot_bytes() const;
  /// The most that is in the host's memory at a time of what rests on a disk behind it, for ranks
  /// on devices other than CPUs. Not pinned, and not in memory().
  [[nodiscard]] int64_t offload_page_bytes() const;
  /// The most bytes that memory() will hold in training steps, known before the first: what is held
  /// now (with the moments, once the optimizer is there), gradients and their sums, gathered units
  /// and the buffers of reductions. Not in it: activations, and evaluation in full precision. It
  /// holds for units used once a step; AdamWMode::in_backward needs less. Not collective. PyTorch:
  /// none.
  [[nodiscard]] int64_t planned_peak_bytes(const MicroBatches& micro_batches = {}) const;
  /// Sets the peak of memory() to what is held now. Not collective.
  void reset_peak_memory();
  /// Gathers, reductions and bytes so far. Not collective.
  [[nodiscard]] Communicator::Counts counts() const;

 protected:
  /// The unit that calls of the handle gather.
  [[nodiscard]] detail::ShardedUnit root_unit() const;
  std::shared_ptr<detail::Engine> engine_;  ///< shared by all handles of the model

 private:
  friend detail::Engine& detail::engine_of(const ShardedModule& model);
};

}  // namespace sherd
