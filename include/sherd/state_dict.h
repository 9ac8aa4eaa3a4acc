#pragma once
// State of a sharded model and its optimizer by name: whole tensors, shards, and access to full
// parameters. Also the initialisation of a model. (For files see save_checkpoint() in
// checkpoint.h.)

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include "sherd/optim.h"
#include "sherd/sharded_module.h"
#include "sherd/world.h"

namespace sherd {

/// Options for whole tensors.
struct FullStateOptions {
  /// True: only rank 0 receives them; false: every rank does.
  bool rank0_only = true;
  /// Dtype of floating-point tensors. Unset: each tensor's dtype before sharding.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

/// One whole tensor of a model's state.
struct FullParameter {
  std::string name;        ///< qualified name
  std::string tied_to;     ///< first name of the same parameter; empty if this is the first
  bool is_buffer = false;  ///< true for a buffer, false for a parameter
  at::Tensor value;        ///< the whole tensor, on the CPU; the visitor may keep it
};

/// Calls `visit` with each whole parameter under all its names, then with the buffers of rank 0.
/// The order is unit by unit, the root first, in registration order within a unit. Not called on
/// ranks that receive no whole tensors (`rank0_only`).
///
/// Trainable parameters are rounded from their fp32 masters. Collective. With `rank0_only` each
/// rank sends its shard to rank 0 alone; otherwise each shard is broadcast. Memory: one whole
/// tensor on a visiting rank, unless the visitor keeps more. On each other rank at most 16 MiB with
/// `rank0_only` (none for a shard in host memory that is not converted), else 1 MiB per rank.
/// Throws Error: Usage for missing values (meta), or for a dtype that is not floating-point. If
/// `visit` throws on one rank, it is not called there again, and all ranks throw an Error that
/// names the rank, after at most 256 MiB of further tensors. PyTorch: `get_model_state_dict` with
/// `full_state_dict`, one tensor at a time.
void for_each_full_parameter(ShardedModule& model,
                             const std::function<void(const FullParameter&)>& visit,
                             const FullStateOptions& options = {});

/// Whole tensors by qualified name. Tied names share one tensor.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;

/// Returns all tensors of for_each_full_parameter(); empty on ranks that receive nothing.
/// Collective. Memory: the whole model on ranks that receive it. PyTorch: `get_model_state_dict`
/// with `full_state_dict` and `cpu_offload`.
[[nodiscard]] StateDict full_state_dict(ShardedModule& model, const FullStateOptions& options = {});

/// Fills the model from rank 0's `dict`, on any world size. Other ranks may pass an empty dict.
/// Collective. Memory: 1 MiB per rank. Throws the same Error(BadData) on every rank before anything
/// changes. It lists every name that is missing, unknown, or of another shape or kind of dtype, and
/// tied names with different values. PyTorch: `set_model_state_dict` with `full_state_dict` and
/// `broadcast_from_rank0`.
void load_full_state_dict(ShardedModule& model, const StateDict& dict);

/// The shards of one rank, by qualified name.
using ShardedStateDict = torch::OrderedDict<std::string, ParameterShard>;

/// Returns this rank's shard of every parameter under all its names, and whole buffers. Tensors are
/// views of the live state, so a dict stays current. ParameterShard::name is the first name. Not
/// collective; no memory. PyTorch: `state_dict()` of a sharded model.
[[nodiscard]] ShardedStateDict sharded_state_dict(ShardedModule& model);

/// Fills the model from shards that the ranks hold collectively, split in any way. Reads `name`,
/// `shape`, `begin`, `end` and `value`, and ignores the other fields. Each rank passes any number
/// of shards. If several shards hold an element, the one with the smallest `begin` is used, and
/// among equal ones that of the lowest rank.
///
/// Collective; ranks exchange only what other ranks need, so shards of the model's own layout are
/// not sent. Memory: 1 MiB per rank. Throws the same Error(BadData) on every rank before anything
/// changes, for shards that fit no parameter and for elements in no shard. PyTorch:
/// `load_state_dict` of a sharded model; for files `load_checkpoint`.
void load_sharded_state_dict(ShardedModule& model, const std::vector<ParameterShard>& pieces);

/// AdamW's state of one whole parameter.
struct OptimState {
  at::Tensor exp_avg;     ///< in the parameter's shape and the moments' dtype
  at::Tensor exp_avg_sq;  ///< as exp_avg
  int64_t step = 0;       ///< number of updates of the parameter
};

/// Whole optimizer state of trainable parameters by qualified name; a tied parameter appears under
/// its first name.
using OptimStateDict = torch::OrderedDict<std::string, OptimState>;

/// Calls `visit` with the state of each trainable parameter; with `rank0_only` on rank 0 only.
/// Collective. Memory: two whole moments on a visiting rank; otherwise as
/// for_each_full_parameter(). Throws as for_each_full_parameter() does. PyTorch:
/// `get_optimizer_state_dict`, one parameter at a time.
void for_each_full_optim_state(
    ShardedModule& model, const AdamW& optimizer,
    const std::function<void(const std::string& name, const OptimState&)>& visit,
    bool rank0_only = true);

/// Returns all states of for_each_full_optim_state(); empty on ranks that receive nothing.
/// Collective. PyTorch: `get_optimizer_state_dict` with `full_state_dict`; FSDP1:
/// `full_optim_state_dict`.
[[nodiscard]] OptimStateDict full_optim_state_dict(ShardedModule& model, const AdamW& optimizer,
                                                   bool rank0_only = true);

/// Restores moments and numbers of steps from rank 0's `dict`, on any world size; steps_done()
/// becomes the maximum over the parameters. Collective. Memory: 1 MiB per rank. Throws the same
/// Error(BadData) on every rank before anything changes. It lists names that are missing, unknown
/// or of another shape, and steps below 0. PyTorch: `set_optimizer_state_dict` with
/// `broadcast_from_rank0`; FSDP1: `scatter_full_optim_state_dict`.
void load_full_optim_state_dict(ShardedModule& model, AdamW& optimizer, const OptimStateDict& dict);

/// Options of with_full_parameters().
struct FullParametersOptions {
  /// True keeps changes: each rank writes back the elements of its own shard, so all ranks must
  /// make the same changes. False drops changes.
  bool writeback = false;
};

/// Calls `inspect()` while the parameters of `unit`, and of units inside it, are whole in the
/// module's members, in `param_dtype`. `unit` is a name in plan(); "root" means the root's own
/// parameters, "" means every unit. `inspect` runs with gradients disabled. Parameters are sharded
/// again afterwards, also after an exception.
///
/// Collective: all ranks call it, and all ranks run `inspect`. Memory: the gathered units. Throws
/// Error(Usage) inside a forward or backward, for an unknown unit, and if `inspect` calls a unit or
/// writes shards. An exception of `inspect` is rethrown; the other ranks throw an Error that names
/// the rank. FSDP1: `summon_full_params`; FSDP2: `unshard()` and `reshard()`.
void with_full_parameters(ShardedModule& model, const std::string& unit,
                          const std::function<void()>& inspect,
                          const FullParametersOptions& options = {});

}  // namespace sherd

namespace torch::nn {
class Module;
}

namespace sherd {

namespace detail {
struct StateEntry;
}

/// One parameter or buffer that an initialize() function fills. Each fill writes only the elements
/// that this rank holds; the last fill counts. Random elements depend only on the seed, the name
/// and the element's index, so they are the same on any world size and with any units. All CPU
/// threads, or a GPU kernel, draw them. Values drawn on a GPU equal those of a CPU, except at most
/// one element in 10⁶, which differs by one unit in the last place of the parameter's dtype. Not
/// collective. Memory: 4 MiB on a CPU, 64 MiB on a GPU.
class ParameterInit {
 public:
  /// Called by initialize().
  ParameterInit(detail::StateEntry& entry, uint64_t seed, c10::Device device)
      : entry_(entry), seed_(seed), device_(device) {}

  /// Returns the qualified name. A tied parameter appears once, under the name of its first owner.
  [[nodiscard]] const std::string& name() const;
  /// Returns the shape of the whole tensor.
  [[nodiscard]] const std::vector<int64_t>& shape() const;
  /// Returns the number of inputs per output: the product of all sizes but the first. Throws
  /// Error(Usage) for fewer than two dimensions. PyTorch: `_calculate_fan_in_and_fan_out`.
  [[nodiscard]] int64_t fan_in() const;

  /// Fills with one value. PyTorch: `init.constant_`.
  void fill_constant(double value);
  /// Fills with values uniform over [low, high). Throws Error(Usage) if high < low, or if the
  /// tensor is not floating-point. PyTorch: `init.uniform_`.
  void fill_uniform(double low, double high);
  /// Fills with normally distributed values. Throws Error(Usage) if std < 0, or if the tensor is
  /// not floating-point. PyTorch: `init.normal_`.
  void fill_normal(double mean, double std);
  /// Fills with values uniform over ±sqrt(6 ÷ ((1 + a²) × fan_in())). `torch::nn::Linear` uses a =
  /// sqrt(5). Throws as fan_in() and fill_uniform() do. PyTorch: `init.kaiming_uniform_`.  Paper:
  /// arXiv:1502.01852.
  void fill_kaiming_uniform(double a = 0);
  /// Copies this rank's elements from `whole`, which has the tensor's shape: for computed tables.
  /// Throws Error(Usage) if it is undefined or has another shape.
  void fill_from(const at::Tensor& whole);

  /// Returns true if a fill has been called.
  [[nodiscard]] bool is_filled() const { return filled_; }

 private:
  template <class Distribution>
  void draw(const Distribution& distribution);
  [[noreturn]] void refuse(const std::string& what) const;

  detail::StateEntry& entry_;
  uint64_t seed_;
  c10::Device device_;  ///< device of the model
  bool filled_ = false;
};

/// Fills one parameter or buffer. PyTorch: FSDP1's `param_init_fn`.
using ParamInitFn = std::function<void(ParameterInit&)>;

/// Gives a sharded model its first values without materialising any whole tensor. Calls
/// `param_init_fn` for every parameter and `buffer_init_fn`, if given, for every buffer. The order
/// is unit by unit, the root first, in registration order within a unit. Tensors that the functions
/// leave alone keep their values.
///
/// Collective: all ranks call it with the same seed and with functions that do the same. Memory: as
/// ParameterInit. Throws Error(Usage) inside a forward or a backward, and for tensors built on meta
/// that were not filled, which it lists. After that error, or an exception of a function, the
/// parameters are torn: call it again, or load, before the model is used. PyTorch: `param_init_fn`;
/// `reset_parameters` after `to_empty`.
void initialize(ShardedModule& model, uint64_t seed, const ParamInitFn& param_init_fn,
                const ParamInitFn& buffer_init_fn = {});

/// Source of rank 0's tensors. Returns the whole tensor of that name, in the model's shape and any
/// floating-point dtype (any integer dtype for an integer buffer), or an undefined tensor if it has
/// none.
using TensorSource = std::function<at::Tensor(const std::string& name)>;

/// Fills parameters and buffers with the tensors that `source` returns on rank 0. `source` is not
/// called on other ranks. Tensors are sent one at a time in their own dtype: no rank ever holds the
/// whole model. `source` is asked for a tied parameter by its first name, then by its other names.
///
/// Collective. Memory: at most 1 MiB per rank, plus the one tensor on rank 0 (twice its size if it
/// is not contiguous). Throws the same Error on every rank: BadData, listing every name that is
/// missing or has another shape or kind of dtype. An exception of `source` becomes an Error with
/// its code (Internal if it is no Error). Some parameters may then hold new values: load again
/// before the model is used. PyTorch: `sync_module_states`; `set_model_state_dict` with
/// `broadcast_from_rank0`.
void load_from_rank0(ShardedModule& model, const TensorSource& source);

/// Copies rank 0's parameters and buffers to every rank, in place, for a module that is not sharded
/// yet. Use it for models whose ranks were built with different values: fully_shard() takes each
/// rank's own values.
///
/// Collective. Memory: at most 1 MiB (a tensor's size if it is not contiguous). Throws Error: Usage
/// for a tensor on meta or a sharded module, RanksDisagree if names, shapes or dtypes differ.
/// PyTorch: `sync_module_states`.
void sync_module_states(torch::nn::Module& module, World& world);

}  // namespace sherd
