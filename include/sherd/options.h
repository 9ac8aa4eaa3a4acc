#pragma once
// Options of fully_shard(): plain aggregates, read once.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace torch::nn {
class Module;
}

namespace sherd {

/// The state that each rank keeps between uses of a unit; placements_of() has the table.
/// `docs/guide/strategies.md` compares memory and traffic.  Paper: ZeRO, arXiv:1910.02054; FSDP,
/// arXiv:2304.11277 §3.2.
enum class Strategy {
  /// Shards parameters, gradients and optimizer state; a unit's full parameters exist only while it
  /// runs (ZeRO-3). Least memory; two all-gathers per unit and micro-batch. PyTorch:
  /// `reshard_after_forward=True`.
  FullShard,
  /// As FullShard, but keeps gathered parameters from forward to backward (ZeRO-2). One
  /// all-gather per unit and micro-batch; needs memory for the whole gathered model. PyTorch:
  /// `reshard_after_forward=False`.
  ShardGradOp,
  /// Every rank keeps everything, and gradients are all-reduced. Accepts any mesh. PyTorch:
  /// `DistributedDataParallel`, FSDP1's `NO_SHARD`.
  NoShard,
  /// FullShard within each row of a 2-D mesh; each row holds a copy of the model. PyTorch: a 2-D
  /// mesh with `reshard_after_forward=True`.
  HybridShard,
  /// ShardGradOp within each row of a 2-D mesh. PyTorch: a 2-D mesh with
  /// `reshard_after_forward=False`.
  HybridShardGradOp,
  /// Shards the optimizer state alone (ZeRO-1): one all-gather and one reduction per unit and step,
  /// however many micro-batches it has. Call ShardedModule::set_is_last_backward(). With one
  /// micro-batch per step the same as ShardGradOp; with more, needs the gathered model and 4 bytes
  /// per parameter for whole gradients. PyTorch: `ZeroRedundancyOptimizer`; Megatron: the
  /// distributed optimizer.
  ShardOptimizer,
};

/// Returns the enumerator's name, as in messages: "FullShard".
[[nodiscard]] const char* name_of(Strategy strategy);

/// What each rank of a row of the mesh holds of a tensor. Over the rows everything is replicated.
/// PyTorch: `Replicate()`, `Shard(0)`, `Partial()`.
enum class Placement {
  Replicate,  ///< all of it
  Shard,      ///< its shard
  Partial,    ///< all of it, as this rank's summand: not reduced yet
};

/// A strategy as placements within a row of the mesh. Without a sharded optimizer nothing is
/// sharded: each row is one rank.
struct Placements {
  Placement parameters_after_forward;   ///< of a unit but the root, until its backward
  Placement parameters_after_backward;  ///< until the next micro-batch; an update reshards them
  Placement gradients;                  ///< until the next micro-batch of the same step
  Placement optimizer;                  ///< masters and moments, and gradients at the update
  /// Of the mesh that Mesh::of_strategy() makes. 2: rows and replicas (hybrid).
  int mesh_dimensions;
};

/// Returns the strategy's row of the table of placements.
[[nodiscard]] Placements placements_of(Strategy strategy);

/// How the master values (the values that an optimizer updates) are stored if `param_dtype` is not
/// fp32.
enum class Master {
  Float32,  ///< a separate fp32 shard: 4 more bytes per parameter
  /// The bf16 shard plus 16 more bits: 2 more bytes per parameter. Values and training are
  /// bit-identical to Float32. LibTorch's optimizers do not support it.
  Split,
  /// The bf16 shard alone: no additional memory. AdamW computes in fp32 and rounds stochastically,
  /// so that updates below 1/256 of a value are applied with matching probability instead of being
  /// lost. The bits do not depend on the number of ranks and repeat in every run. LibTorch's
  /// optimizers do not support it. Paper: arXiv:2010.06192.
  BFloat16,
};

/// Returns the enumerator's name, as in messages: "Split".
[[nodiscard]] const char* name_of(Master master);

/// The dtypes of a sharded model; nothing else is cast. PyTorch: `MixedPrecisionPolicy`, and
/// FSDP1's `MixedPrecision` for the parts that FSDP2 dropped.
struct Precision {
  /// Dtype of gathered parameters, and so of computation: kFloat, kBFloat16 or kHalf. Unset: each
  /// parameter's own, which integers always keep. The optimizer updates fp32 values in every case,
  /// unless `master` is BFloat16.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  /// Master storage for parameters with a bf16 param_dtype; ignored for others. Split and BFloat16
  /// exclude Half and full_precision_in_eval. PyTorch: none.
  Master master = Master::Float32;
  /// Dtype of the gradient shard: kFloat, or kBFloat16, which then applies to parameters with a
  /// bf16 param_dtype. In both cases gradients are sent in `param_dtype` and summed in fp32. With
  /// kBFloat16 the sum over the ranks is rounded once per micro-batch and once more for the
  /// replicas. Many micro-batches then lose small contributions, and results depend on how a batch
  /// is split. LibTorch's optimizers do not support kBFloat16. PyTorch: `reduce_dtype`, which there
  /// is also the dtype on the wire.
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  /// Casts floating-point buffers once, in fully_shard(). Unset: buffers keep their dtype. FSDP1:
  /// `buffer_dtype`.
  std::optional<c10::ScalarType> buffer_dtype = std::nullopt;
  /// Casts the floating-point tensors that the model returns; in UnitOptions::precision, those that
  /// the unit returns. PyTorch: `output_dtype`.
  std::optional<c10::ScalarType> output_dtype = std::nullopt;
  /// Casts the floating-point arguments of a unit to `param_dtype`. PyTorch: `cast_forward_inputs`.
  bool cast_forward_inputs = true;
  /// Returns true for parameters, by qualified name, that keep their own dtype (norms). They form a
  /// separate segment of the unit. FSDP1: `_module_classes_to_ignore`.
  std::function<bool(const std::string& parameter)> keeps_own_dtype = {};
  /// Gathers the fp32 masters while gradients are disabled (NoGradGuard), for twice the bytes of
  /// bf16. Parameters frozen before sharding have no master and stay in `param_dtype`. FSDP1:
  /// `FSDP_USE_FULL_PREC_IN_EVAL`.
  bool full_precision_in_eval = false;
};

/// State that is stored on disk or in host memory while it is not in use. For each part set either
/// a folder, which is created if missing, or `_on_host`. On devices other than CPUs, the data of a
/// folder passes through host pages, and the host waits for them. Apart from that, a folder works
/// as the same part's `_on_host` does, with bit-identical results.
struct Offload {
  /// Folder for AdamW's moments, and for masters if `param_dtype` is not fp32. Each rank uses an
  /// unnamed file that vanishes with the process. The update loads a few million elements at a time
  /// (MemoryKind::OffloadSlot); results are bit-identical to state in memory. Empty: the state
  /// stays in memory. Excludes full_precision_in_eval and LibTorch's optimizers.
  /// ParameterShard::value of offloaded masters is a copy, and ShardedModule::publish() refuses
  /// them. PyTorch: `CPUOffloadPolicy`, which moves more, to the host. Paper: ZeRO-Infinity,
  /// arXiv:2104.07857.
  std::string optimizer_folder = {};
  /// Folder for the gradient sums, used in the same way. A unit's sums are loaded to be added to,
  /// and for the update. ParameterShard::gradient is a copy then. With AdamWMode::in_backward the
  /// sums are consumed before they would be stored. Whole-unit sums of micro-batches without
  /// communication (set_requires_gradient_sync(false)) stay in memory.
  std::string gradient_folder = {};
  /// Folder for the shards in param_dtype; each gather of a unit reads its shards. Supported for
  /// one rank, ranks in one process, ranks over process groups (Transport::ProcessGroups) and ranks
  /// over NCCL. Refused for ranks that share memory: they hold each parameter once per host, in
  /// place. Excludes ShardedModule::publish(), as optimizer_folder does if there are masters.
  std::string parameter_folder = {};
  /// Stores what optimizer_folder stores in pinned host memory, for ranks on devices other than
  /// CPUs. Copies to and from the device overlap the update. The update overlaps the next forward,
  /// unless another part is on disk. Results are bit-identical to state on the device.
  /// OptimizerShard::tensors are host tensors. Excludes what optimizer_folder excludes.
  bool optimizer_on_host = false;
  /// Moves the tensors that autograd saves in units, from 1 MiB each, to pinned host memory during
  /// forward, and back before the unit's backward. The root unit is excluded. For a unit with
  /// checkpointed activations these are its inputs; otherwise all tensors that its operators save.
  /// The device holds those of the two running units. Results are bit-identical. For ranks on
  /// devices other than CPUs, in processes without Python's autograd. PyTorch:
  /// `torch.autograd.graph.save_on_cpu`.
  bool activations_on_host = false;
  /// Stores the shards in param_dtype in pinned host memory, for ranks on devices other than CPUs.
  /// A unit's shard is copied into the unit's gather slot while earlier work runs. On one rank this
  /// copy already is the gathered unit. AdamW copies the shard to the device in chunks and writes
  /// it back; results are bit-identical to parameters on the device. ParameterShard::value is a
  /// copy if there is no separate master, and publish() refuses it then. For one rank, and for
  /// ranks that exchange over NCCL. PyTorch: `CPUOffloadPolicy`.
  bool parameters_on_host = false;
  /// Stores the gradient sums in pinned host memory, for ranks on devices other than CPUs. A unit's
  /// sums move to the host after their reduction and after the norm has read their squares. They
  /// return during the unit's next backward, and for the update. Results are bit-identical. The
  /// device holds the sums under reduction and those of one unit on its way to the host.
  /// ParameterShard::gradient is a copy. Otherwise as gradient_folder.
  bool gradients_on_host = false;
};

/// Options that may differ between the units of a model.
struct UnitOptions {
  /// Unset: the model's precision. Its buffer_dtype must be unset or equal to the model's. PyTorch:
  /// `fully_shard(block, mp_policy=…)`.
  std::optional<Precision> precision = std::nullopt;
  /// Unset: false for the root; the strategy decides for other units. PyTorch:
  /// `reshard_after_forward`.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// Keeps only the unit's inputs from forward to backward and recomputes the rest (activation
  /// checkpointing). PyTorch: `checkpoint_wrapper`.  Paper: arXiv:1604.06174.
  bool checkpoint_activations = false;
};

/// A module, as seen by a policy.
struct ModuleInfo {
  std::string name;                 ///< qualified name
  const torch::nn::Module& module;  ///< the module itself; a policy may test its type
  int64_t numel = 0;                ///< total elements of all parameters inside
  bool is_unit = false;             ///< true if held in a `Unit<>`; only these can be chosen
};

/// Chooses the modules that become units. If it returns options, the module becomes a unit;
/// otherwise the module stays part of the enclosing unit. Called for every module below the root,
/// outer ones first. Choosing a module that no `Unit<>` holds is an error that names it. FSDP1:
/// `auto_wrap_policy`.
using UnitPolicy = std::function<std::optional<UnitOptions>(const ModuleInfo&)>;

/// Ready-made policies. FSDP1: torch.distributed.fsdp.wrap.
namespace unit_policy {

/// Chooses every module held in a `Unit<>`; all other parameters belong to the root. The default.
[[nodiscard]] inline UnitPolicy every_unit(UnitOptions options = {}) {
  return [options](const ModuleInfo& info) {
    return info.is_unit ? std::optional(options) : std::nullopt;
  };
}

/// Chooses modules of these holder types. FSDP1: `ModuleWrapPolicy`.
template <class... Blocks>
[[nodiscard]] UnitPolicy of_type(UnitOptions options = {}) {
  return [options](const ModuleInfo& info) {
    const bool chosen =
        ((dynamic_cast<const typename Blocks::ContainedType*>(&info.module) != nullptr) || ...);
    return chosen ? std::optional(options) : std::nullopt;
  };
}

/// Chooses units of at least `numel` parameters. Smaller ones join the enclosing unit, because
/// small gathers are dominated by latency. FSDP1: `size_based_auto_wrap_policy`.
[[nodiscard]] inline UnitPolicy min_numel(int64_t numel, UnitOptions options = {}) {
  return [numel, options](const ModuleInfo& info) {
    return info.is_unit && info.numel >= numel ? std::optional(options) : std::nullopt;
  };
}

/// Chooses modules whose qualified name `accepts` accepts. FSDP1: `lambda_auto_wrap_policy`.
[[nodiscard]] inline UnitPolicy named(std::function<bool(const std::string& name)> accepts,
                                      UnitOptions options = {}) {
  return [accepts = std::move(accepts), options](const ModuleInfo& info) {
    return accepts(info.name) ? std::optional(options) : std::nullopt;
  };
}

}  // namespace unit_policy

/// Time at which backward gathers the next unit. FSDP1: `BackwardPrefetch`.
enum class BackwardPrefetch {
  Pre,   ///< before the current unit's backward: the two overlap
  Post,  ///< after the current unit is freed: less memory, less overlap
};

/// Options of fully_shard().
struct ShardOptions {
  Strategy strategy = Strategy::FullShard;  ///< state kept on each rank
  Precision precision = {};                 ///< default for units without their own
  /// Number of units that are gathered ahead of the running one, 0…8. Each needs the memory of one
  /// gathered unit.
  int prefetch_depth = 1;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::Pre;  ///< when backward prefetches
  /// Names of the units in the expected order of the first forward. Each later forward expects the
  /// order of the previous one. PyTorch: `set_modules_to_forward_prefetch`.
  std::vector<std::string> forward_order = {};
  /// With n > 0, each rank keeps 1/n of each gathered unit between forward and backward; n must
  /// divide the shard group's size. The gather in backward (and in later forwards, until parameters
  /// change) then stays within n consecutive ranks. 0: the strategy decides; 1: units stay
  /// gathered. Only for FullShard and HybridShard. PyTorch: `reshard_after_forward=n`. Paper:
  /// ZeRO++ hpZ, arXiv:2306.10209.
  int reshard_after_forward_size = 0;
  /// Policy that chooses the units. Unset: every_unit().
  UnitPolicy units = {};
  /// Returns true for parameters, by qualified name, that are left alone: not sharded, reduced or
  /// updated. PyTorch: `ignored_params`.
  std::function<bool(const std::string& parameter)> ignored = {};
  /// Compares operation, unit, phase and step on all ranks before each collective. A rank that
  /// differs is reported before anything hangs: Error(RanksDisagree) on every rank. Costs one more
  /// exchange per collective. PyTorch: `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
  bool debug = false;
  Offload offload = {};  ///< state on disk or in host memory
};

}  // namespace sherd
