#pragma once
// First values of a model: random values that do not depend on the world size, or values from rank
// 0. (For values from files see load_safetensors() in checkpoint.h.)

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
