#pragma once
// Values for a model that has none yet: random ones that are equal on any world size, and those
// that rank 0 alone has. (Slices of files: load_safetensors in checkpoint.h.)

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/sharded_module.h"
#include "sherd/world.h"

namespace torch::nn {
class Module;
}

namespace sherd {

namespace detail {
struct StateEntry;
}

/// One parameter or buffer that an initialize() function is to fill. Each fill writes the elements
/// that this rank holds, and nothing else; the last fill counts. Random elements are a function of
/// the seed, the name and the element's index, so they are the same on any world size and with any
/// units. The threads of a CPU or a kernel of the GPU draw them. Values drawn on a GPU equal those
/// of a CPU, except at most one element in 10⁶, which differs by one unit in the last place of the
/// parameter's dtype. Not collective. Memory: 4 MiB on a CPU, 64 MiB on a GPU.
class ParameterInit {
 public:
  /// Made by initialize().
  ParameterInit(detail::StateEntry& entry, uint64_t seed, c10::Device device)
      : entry_(entry), seed_(seed), device_(device) {}

  /// Qualified name; a tied parameter comes once, with that of its first owner.
  [[nodiscard]] const std::string& name() const;
  /// Shape of the whole tensor.
  [[nodiscard]] const std::vector<int64_t>& shape() const;
  /// How many inputs an output is computed from: the product of all sizes but the first. Throws
  /// Error(Usage) for fewer than two dimensions. PyTorch: `_calculate_fan_in_and_fan_out`.
  [[nodiscard]] int64_t fan_in() const;

  /// PyTorch: `init.constant_`.
  void fill_constant(double value);
  /// Uniform over [low, high). Throws Error(Usage) where high < low, or the tensor holds no
  /// floating-point numbers. PyTorch: `init.uniform_`.
  void fill_uniform(double low, double high);
  /// Throws Error(Usage) where std < 0, or the tensor holds no floating-point numbers. PyTorch:
  /// `init.normal_`.
  void fill_normal(double mean, double std);
  /// Uniform over ±sqrt(6 ÷ ((1 + a²) × fan_in())); a = sqrt(5) is what `torch::nn::Linear` starts
  /// with. Throws as fan_in() and fill_uniform(). PyTorch: `init.kaiming_uniform_`.  Paper:
  /// arXiv:1502.01852.
  void fill_kaiming_uniform(double a = 0);
  /// This rank's elements of `whole`, which has the tensor's shape: for computed tables. Throws
  /// Error(Usage) where it is undefined or has another shape.
  void fill_from(const at::Tensor& whole);

  /// Whether a fill has been called.
  [[nodiscard]] bool is_filled() const { return filled_; }

 private:
  template <class Distribution>
  void draw(const Distribution& distribution);
  [[noreturn]] void refuse(const std::string& what) const;

  detail::StateEntry& entry_;
  uint64_t seed_;
  c10::Device device_;  ///< of the model
  bool filled_ = false;
};

/// Fills one parameter or buffer. PyTorch: FSDP1's `param_init_fn`.
using ParamInitFn = std::function<void(ParameterInit&)>;

/// Gives a sharded model its first values, without the whole of any tensor: calls `param_init_fn`
/// for every parameter and `buffer_init_fn`, where there is one, for every buffer, unit by unit,
/// the root's first, in registration order within a unit. What they leave alone keeps its values.
///
/// Collective: all ranks call it with the same seed and functions that do the same. Memory: that of
/// ParameterInit.
/// Throws Error(Usage) inside a forward or a backward, and, listing it, for what was built on meta
/// and not filled; then, and where a function throws, the parameters are torn: call it again, or
/// load, before the model is used. PyTorch: `param_init_fn`; `reset_parameters` after `to_empty`.
void initialize(ShardedModule& model, uint64_t seed, const ParamInitFn& param_init_fn,
                const ParamInitFn& buffer_init_fn = {});

/// Where rank 0 takes tensors from: returns the whole tensor of that name, in the model's shape and
/// any floating-point dtype (any integer dtype for a buffer of integers), or an undefined one where
/// it has none.
using TensorSource = std::function<at::Tensor(const std::string& name)>;

/// Fills parameters and buffers with what `source` returns on rank 0; the other ranks' `source` is
/// never called. Each tensor travels once, in its own dtype, while it is the only one: the whole
/// model is never on one rank. A tied parameter is asked for by its first name, then by its others.
///
/// Collective. Memory: at most 1 MiB a rank, beside the one tensor on rank 0 (twice that one where
/// it is not contiguous). Throws the same Error on every rank: BadData, listing every name that is
/// missing or has another shape or kind of dtype; what `source` throws, with its code (Internal
/// where it is no Error). Some parameters may then hold new values: load again before the model is
/// used. PyTorch: `sync_module_states`; `set_model_state_dict` with `broadcast_from_rank0`.
void load_from_rank0(ShardedModule& model, const TensorSource& source);

/// Gives a module that is not sharded yet rank 0's parameters and buffers on every rank, in place:
/// for models whose ranks were built with different values, since fully_shard() takes from each
/// rank its own.
///
/// Collective. Memory: at most 1 MiB (a tensor's size where it is not contiguous). Throws Error:
/// Usage for a tensor on meta or a sharded module, RanksDisagree where names, shapes or dtypes
/// differ. PyTorch: `sync_module_states`.
void sync_module_states(torch::nn::Module& module, World& world);

}  // namespace sherd
