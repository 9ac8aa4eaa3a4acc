#pragma once
// State of a sharded model and its optimizer by name: whole tensors, pieces, and a look at full
// parameters. (Files: save_checkpoint in checkpoint.h.)

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include "sherd/optim.h"
#include "sherd/sharded_module.h"

namespace sherd {

/// How whole tensors are put together.
struct FullStateOptions {
  /// Only rank 0 gets them; else every rank does.
  bool rank0_only = true;
  /// Of floating-point tensors; unset: each has the dtype it had before sharding.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

/// One whole tensor of a model's state.
struct FullParameter {
  std::string name;        ///< qualified
  std::string tied_to;     ///< the first name of the same parameter; empty if this is it
  bool is_buffer = false;  ///< or a parameter
  at::Tensor value;        ///< whole, in its shape, on the CPU; the visitor may keep it
};

/// Calls `visit` with the parameters unit by unit, the root's first, in registration order within a
/// unit, each under all its names, then with the buffers of rank 0. On ranks that get no whole
/// tensors (`rank0_only`) it is not called.
///
/// Trainable parameters are rounded from their fp32 masters. Collective. With `rank0_only` each
/// rank sends its shard to rank 0 alone; else each shard is broadcast. Memory: one whole tensor
/// where it is visited, unless the visitor keeps more; with `rank0_only` at most 16 MiB on each
/// other rank (none for a shard in host memory that is not converted), else 1 MiB per rank.
/// Throws Error: Usage for values that are not there yet (meta) and a dtype that is not
/// floating-point. After `visit` has thrown on one rank it is not called there again, and all ranks
/// throw an Error that names the rank, after at most 256 MiB of further tensors. PyTorch:
/// `get_model_state_dict` with `full_state_dict`, a tensor at a time.
void for_each_full_parameter(ShardedModule& model,
                             const std::function<void(const FullParameter&)>& visit,
                             const FullStateOptions& options = {});

/// Whole tensors by qualified name. Tied names share one tensor.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;

/// All of for_each_full_parameter(); empty on ranks that get nothing. Collective. Memory: the whole
/// model where it is not empty. PyTorch: `get_model_state_dict` with `full_state_dict` and
/// `cpu_offload`.
[[nodiscard]] StateDict full_state_dict(ShardedModule& model, const FullStateOptions& options = {});

/// Fills the model from rank 0's `dict`, which the other ranks need not have, on any world size.
/// Collective. Memory: 1 MiB a rank. Throws the same Error(BadData) on every rank before anything
/// changes, listing every name that is missing, unknown, of another shape or kind of dtype, and
/// tied names with different values. PyTorch: `set_model_state_dict` with `full_state_dict` and
/// `broadcast_from_rank0`.
void load_full_state_dict(ShardedModule& model, const StateDict& dict);

/// What one rank holds, by qualified name.
using ShardedStateDict = torch::OrderedDict<std::string, ParameterShard>;

/// This rank's part of every parameter under all its names, and whole buffers. Tensors are views of
/// the live state, so a dict stays current; ParameterShard::name is the first name. Not collective,
/// no memory. PyTorch: `state_dict()` of a sharded model.
[[nodiscard]] ShardedStateDict sharded_state_dict(ShardedModule& model);

/// Fills the model from pieces that the ranks hold together, cut in any way: `name`, `shape`,
/// `begin`, `end` and `value` are read, the rest is ignored. Each rank gives what it has, in any
/// number of pieces; an element that several pieces hold is taken from the one that begins first,
/// and among those that begin alike from the lowest rank's.
///
/// Collective; only pieces that other ranks need travel, so pieces of this very cut do not. Memory:
/// 1 MiB a rank. Throws the same Error(BadData) on every rank before anything changes, for pieces
/// that fit no parameter, and elements in no piece. PyTorch: `load_state_dict` of a sharded
/// model; for files `load_checkpoint`.
void load_sharded_state_dict(ShardedModule& model, const std::vector<ParameterShard>& pieces);

/// The state of one parameter in an AdamW, whole.
struct OptimState {
  at::Tensor exp_avg;     ///< in the parameter's shape and the dtype of the moments
  at::Tensor exp_avg_sq;  ///< the same
  int64_t step = 0;       ///< updates that the parameter has had
};

/// Whole optimizer state by qualified name (the first, of a tied parameter), of trainable
/// parameters.
using OptimStateDict = torch::OrderedDict<std::string, OptimState>;

/// Calls `visit` with the state of each trainable parameter, on rank 0 only if `rank0_only`.
/// Collective. Memory: two whole moments where they are visited; else as for_each_full_parameter().
/// Throws as for_each_full_parameter(). PyTorch: `get_optimizer_state_dict`, a parameter at a time.
void for_each_full_optim_state(
    ShardedModule& model, const AdamW& optimizer,
    const std::function<void(const std::string& name, const OptimState&)>& visit,
    bool rank0_only = true);

/// All of for_each_full_optim_state(); empty on ranks that get nothing. Collective. PyTorch:
/// `get_optimizer_state_dict` with `full_state_dict`; FSDP1: `full_optim_state_dict`.
[[nodiscard]] OptimStateDict full_optim_state_dict(ShardedModule& model, const AdamW& optimizer,
                                                   bool rank0_only = true);

/// Restores moments and the number of steps from rank 0's `dict`, on any world size; steps_done()
/// becomes the most that any parameter has had. Collective. Memory: 1 MiB a rank. Throws the same
/// Error(BadData) on every rank before anything changes, listing names that are missing, unknown or
/// of another shape, and steps below 0. PyTorch: `set_optimizer_state_dict` with
/// `broadcast_from_rank0`; FSDP1: `scatter_full_optim_state_dict`.
void load_full_optim_state_dict(ShardedModule& model, AdamW& optimizer, const OptimStateDict& dict);

/// Options of with_full_parameters().
struct FullParametersOptions {
  /// Whether changes are kept: each rank writes back the elements of its own shard, so all ranks
  /// must make the same changes. Else changes are dropped.
  bool writeback = false;
};

/// Calls `inspect()` while the parameters of `unit`, and of units inside it, are whole in the
/// module's own members, in `param_dtype`. `unit` is a name of plan(); "root" is the root's own
/// parameters, "" every unit. `inspect` runs without gradient mode. Afterwards, also after an
/// exception, parameters are sharded again.
///
/// Collective: all ranks call it, and all call `inspect`. Memory: the gathered units. Throws
/// Error(Usage) inside a forward or backward, for an unknown unit, and where a unit is called or
/// shards are written by `inspect`; what `inspect` throws is thrown on, and on the other ranks an
/// Error that names the rank. FSDP1: `summon_full_params`; FSDP2: `unshard()` and `reshard()`.
void with_full_parameters(ShardedModule& model, const std::string& unit,
                          const std::function<void()>& inspect,
                          const FullParametersOptions& options = {});

}  // namespace sherd
