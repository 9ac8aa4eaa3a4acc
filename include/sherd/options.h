#pragma once
// How a model is sharded: plain aggregates, read once by fully_shard().

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

/// What each rank keeps between uses of a unit. In `docs/guide/strategies.md` with memory and
/// traffic of each.  Paper: ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277 §3.2.
enum class Strategy {
  /// Parameters, gradients and optimizer state sharded; a unit's full parameters live only while it
  /// runs (ZeRO-3). Least memory: two gathers a unit and step. PyTorch:
  /// `reshard_after_forward=True`.
  FullShard,
  /// As FullShard, but gathered parameters stay from forward to backward (ZeRO-2): one gather a
  /// unit and step, for the memory of the whole gathered model. PyTorch:
  /// `reshard_after_forward=False`.
  ShardGradOp,
  /// Every rank keeps everything; gradients are all-reduced. Takes any mesh. PyTorch:
  /// `DistributedDataParallel`, FSDP1's `NO_SHARD`.
  NoShard,
  /// FullShard within the rows of a 2-D mesh, which each hold a copy of the model. PyTorch: a 2-D
  /// mesh with `reshard_after_forward=True`.
  HybridShard,
  /// ShardGradOp within the rows of a 2-D mesh. PyTorch: a 2-D mesh with
  /// `reshard_after_forward=False`.
  HybridShardGradOp,
};

/// The enumerator's name, as in messages: "FullShard".
[[nodiscard]] const char* name_of(Strategy strategy);

/// How the values lie that an optimizer updates, where less than fp32 travels.
enum class Master {
  Float32,  ///< a shard of their own: 4 bytes a parameter beside what travels
  /// As the bf16 that travels and 16 more bits: 2 bytes a parameter beside it. The same values and
  /// the same training, to the bit; optimizers of LibTorch cannot take them.
  Split,
  /// The bf16 that travels is all that there is: nothing beside it. AdamW computes in fp32 and
  /// rounds up or down at random, so that updates below 1/256 of a value are not lost but come at
  /// times; the same bits on any number of ranks and in any repetition. Optimizers of LibTorch
  /// cannot take them. Paper: arXiv:2010.06192.
  BFloat16,
};

/// The enumerator's name, as in messages: "Split".
[[nodiscard]] const char* name_of(Master master);

/// The dtypes of a sharded model. Nothing else is cast. PyTorch: `MixedPrecisionPolicy`, and
/// FSDP1's `MixedPrecision` for what FSDP2 dropped.
struct Precision {
  /// Dtype of gathered parameters, and so of computation: kFloat, kBFloat16 or kHalf. Unset: each
  /// parameter's own. What the optimizer updates has the values of fp32 whatever this is, unless
  /// `master` is BFloat16.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  /// Of parameters that travel in bf16; others have no use for it. Split and BFloat16 exclude Half
  /// and full_precision_in_eval. PyTorch: none.
  Master master = Master::Float32;
  /// Dtype of the gradient shard: kFloat, or kBFloat16, which parameters that travel in bf16 then
  /// use. Gradients travel in `param_dtype` and are added up in fp32 in either case; in bf16 the
  /// sum over the ranks is rounded for each micro-batch and for the replicas, so that many
  /// micro-batches lose what small gradients add, and results depend on how a batch is cut.
  /// Optimizers of LibTorch cannot take it. PyTorch: `reduce_dtype`, in which gradients travel.
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  /// Casts floating-point buffers once, in fully_shard(). Unset: left as they are. FSDP1:
  /// `buffer_dtype`.
  std::optional<c10::ScalarType> buffer_dtype = std::nullopt;
  /// Casts floating-point tensors that the model returns; in UnitOptions::precision, those that the
  /// unit returns. PyTorch: `output_dtype`.
  std::optional<c10::ScalarType> output_dtype = std::nullopt;
  /// Casts floating-point tensors passed to a unit to `param_dtype`. PyTorch:
  /// `cast_forward_inputs`.
  bool cast_forward_inputs = true;
  /// Parameters, by qualified name, that keep their own dtype (norms): a segment of their own
  /// within the unit. FSDP1: `_module_classes_to_ignore`.
  std::function<bool(const std::string& parameter)> keeps_own_dtype = {};
  /// Gathers the fp32 masters where gradients are disabled (NoGradGuard), for twice the bytes of
  /// bf16. Parameters that were frozen when sharded have no master and stay in `param_dtype`.
  /// FSDP1: `FSDP_USE_FULL_PREC_IN_EVAL`.
  bool full_precision_in_eval = false;
};

/// What rests on a disk, or on the host of a device, while nothing computes with it: of each part a
/// folder, which is made where it is not there, or `_on_host`, not both. On devices other than CPUs
/// a disk is behind the host: what a folder is given for comes through pages of the host, for which
/// the host waits, and otherwise as by the same part's `_on_host`, to the same bits.
struct Offload {
  /// A folder for masters, where another dtype travels, and AdamW's moments: on each rank a file
  /// without a name, which is gone with the process. They come into memory for their update, some
  /// millions of elements at a time (MemoryKind::OffloadSlot): results are those of state in
  /// memory, to the bit. Empty: they stay in memory. Excludes
  /// full_precision_in_eval and LibTorch's optimizers; ParameterShard::value of what rests there is
  /// a copy, and publish() refuses it. PyTorch: `CPUOffloadPolicy`, which moves
  /// more, to the host. Paper: ZeRO-Infinity, arXiv:2104.07857.
  std::string optimizer_folder = {};
  /// A folder for the sums of gradients, in the same way: a unit's comes into memory while it is
  /// added to, and for the update. ParameterShard::gradient is a copy then. Where AdamW updates in
  /// backward they are gone before they could rest. Micro-batches that are added up without
  /// communication (set_requires_gradient_sync(false)) stay in memory, whole.
  std::string gradient_folder = {};
  /// A folder for parameters as they travel: a unit's are read when it is gathered. For one rank,
  /// ranks of one process, ranks over process groups (Transport::ProcessGroups), and ranks over
  /// NCCL; refused for ranks that share memory, which hold parameters once a host, in place.
  /// Excludes publish(), as optimizer_folder does where there are masters.
  std::string parameter_folder = {};
  /// Masters and moments, as by optimizer_folder, in pinned memory of the host: for ranks on
  /// devices other than CPUs. They are copied to the device and back beside the update, and that
  /// goes on beside the next forward, unless another part rests on a disk: results are those of
  /// state on the device, to the bit. OptimizerShard::tensors lie on the host. Excludes what
  /// optimizer_folder excludes.
  bool optimizer_on_host = false;
  /// What autograd saves in units other than the root, in tensors of at least 1 MiB, goes to pinned
  /// memory of the host during forward and comes back before their backward: the inputs of those
  /// whose activations are checkpointed, of others all that their operators save. On the device lie
  /// those of the two units that run. The results are the same, to the bit. For ranks on devices
  /// other than CPUs, in processes without Python's autograd. PyTorch:
  /// `torch.autograd.graph.save_on_cpu`.
  bool activations_on_host = false;
  /// Parameters as they travel, in pinned memory of the host, for ranks on devices other than CPUs:
  /// a unit's piece is copied into the slot that the unit is gathered in, beside what runs before.
  /// Of one rank, which gathers from nobody, the copy is the gathered unit. AdamW brings the piece
  /// to the device in stretches and writes it back: results are those of parameters on the device,
  /// to the bit. ParameterShard::value is a copy where there are no other masters, and publish()
  /// refuses it then. For one rank, and ranks that exchange over NCCL. PyTorch: `CPUOffloadPolicy`.
  bool parameters_on_host = false;
  /// Sums of gradients, in pinned memory of the host, for ranks on devices other than CPUs: a
  /// unit's goes there when its reduction has ended, after the squares for the norm were taken, and
  /// comes back while its next backward is computed and for the update: the results are the same,
  /// to the bit. On the device lie those that are reduced at a time, and one that leaves.
  /// ParameterShard::gradient is a copy. Otherwise as gradient_folder.
  bool gradients_on_host = false;
};

/// What may differ between the units of a model.
struct UnitOptions {
  /// Unset: the model's. Its buffer_dtype is unset or the model's. PyTorch: `fully_shard(block,
  /// mp_policy=…)`.
  std::optional<Precision> precision = std::nullopt;
  /// Unset: as the strategy says; the root's is false. PyTorch: `reshard_after_forward`.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// Keeps only the unit's inputs from forward to backward, and computes the rest again (activation
  /// checkpointing). PyTorch: `checkpoint_wrapper`.  Paper: arXiv:1604.06174.
  bool checkpoint_activations = false;
};

/// A module, as a policy sees it.
struct ModuleInfo {
  std::string name;                 ///< qualified
  const torch::nn::Module& module;  ///< the module itself; its type may be asked for
  int64_t numel = 0;                ///< of all parameters inside
  bool is_unit = false;             ///< held in a `Unit<>`: only these can be chosen
};

/// Chooses the modules that become units: options that it returns make one; without them the module
/// stays part of the enclosing unit. Called for every module below the root, outer ones first.
/// Choosing a module that no `Unit<>` holds is an error that names it. FSDP1: `auto_wrap_policy`.
using UnitPolicy = std::function<std::optional<UnitOptions>(const ModuleInfo&)>;

/// Policies to choose from. FSDP1: torch.distributed.fsdp.wrap.
namespace unit_policy {

/// Every module held in a `Unit<>`; what remains belongs to the root. The default.
[[nodiscard]] inline UnitPolicy every_unit(UnitOptions options = {}) {
  return [options](const ModuleInfo& info) {
    return info.is_unit ? std::optional(options) : std::nullopt;
  };
}

/// Modules of these holder types. FSDP1: `ModuleWrapPolicy`.
template <class... Blocks>
[[nodiscard]] UnitPolicy of_type(UnitOptions options = {}) {
  return [options](const ModuleInfo& info) {
    const bool chosen =
        ((dynamic_cast<const typename Blocks::ContainedType*>(&info.module) != nullptr) || ...);
    return chosen ? std::optional(options) : std::nullopt;
  };
}

/// Units of at least `numel` parameters: smaller ones join the enclosing unit, since a gather of
/// few bytes costs as much time as one of many. FSDP1: `size_based_auto_wrap_policy`.
[[nodiscard]] inline UnitPolicy min_numel(int64_t numel, UnitOptions options = {}) {
  return [numel, options](const ModuleInfo& info) {
    return info.is_unit && info.numel >= numel ? std::optional(options) : std::nullopt;
  };
}

/// Modules whose qualified name the predicate accepts. FSDP1: `lambda_auto_wrap_policy`.
[[nodiscard]] inline UnitPolicy named(std::function<bool(const std::string& name)> accepts,
                                      UnitOptions options = {}) {
  return [accepts = std::move(accepts), options](const ModuleInfo& info) {
    return accepts(info.name) ? std::optional(options) : std::nullopt;
  };
}

}  // namespace unit_policy

/// When the next unit is gathered in backward. FSDP1: `BackwardPrefetch`.
enum class BackwardPrefetch {
  Pre,   ///< before a unit's backward: the gather runs beside it
  Post,  ///< after it has been freed: less memory, less overlap
};

/// Options of fully_shard().
struct ShardOptions {
  Strategy strategy = Strategy::FullShard;  ///< what each rank keeps
  Precision precision = {};                 ///< of units that have none of their own
  /// How many units are gathered ahead of the one that runs, 0…8. Each costs the memory of one
  /// gathered unit.
  int prefetch_depth = 1;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::Pre;  ///< when backward gathers ahead
  /// The order in which the first forward is expected to run units, by name; later forwards are
  /// expected to run as the last one did. PyTorch: `set_modules_to_forward_prefetch`.
  std::vector<std::string> forward_order = {};
  /// Between forward and backward a rank keeps 1/n of each gathered unit, n a divisor of the shard
  /// group's size, so that the gather in backward (and in later forwards, until parameters change)
  /// stays within n consecutive ranks. 0: as the strategy says; 1 keeps units gathered. Only for
  /// FullShard and HybridShard. PyTorch: `reshard_after_forward=n`. Paper: ZeRO++ hpZ,
  /// arXiv:2306.10209.
  int reshard_after_forward_size = 0;
  /// Which modules become units. Unset: every_unit().
  UnitPolicy units = {};
  /// Parameters, by qualified name, that are left alone: neither sharded nor reduced nor updated.
  /// PyTorch: `ignored_params`.
  std::function<bool(const std::string& parameter)> ignored = {};
  /// Before each collective, all ranks compare what it is: operation, unit, phase and step. A rank
  /// that differs is named before anything hangs: Error(RanksDisagree) on every rank. Costs one
  /// more exchange for each. PyTorch: `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
  bool debug = false;
  Offload offload = {};  ///< what rests on a disk, or on a device's host
};

}  // namespace sherd
