#pragma once
// fully_shard(): applies sharding to a module and returns the handle it is used through (design
// §3).

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "sherd/mesh.h"
#include "sherd/options.h"
#include "sherd/unit.h"

namespace sherd {

namespace detail {
class Runtime;
/// Makes factory functions build on the meta device while it lives.
class MetaGuard {
 public:
  MetaGuard();
  ~MetaGuard();
  MetaGuard(const MetaGuard&) = delete;
  MetaGuard& operator=(const MetaGuard&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};
}  // namespace detail

/// Calls `build` with every tensor it creates on the meta device: shapes and dtypes without memory.
/// Modules keep them until fully_shard() gives them storage; their values then come from
/// load_safetensors(), load_from_rank0() or initialize(), or, of buffers, from being filled in
/// place. Not collective. PyTorch: `with torch.device("meta")`.
template <class Build>
auto on_meta(Build&& build) {
  detail::MetaGuard guard;
  return std::forward<Build>(build)();
}

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
      0;             ///< elements [begin, end) of the flattened parameter; empty where begin == end
  int64_t end = 0;   ///< see begin
  at::Tensor value;  ///< [end − begin]: fp32 master; of a frozen parameter the travelling shard
  /// [end − begin] fp32 sum; zeros of a parameter that no rank used, in a unit whose backward ran;
  /// undefined before a reduction, and after a backward that failed.
  at::Tensor gradient;
};

/// How the micro-batches of a step are accumulated.
struct MicroBatches {
  int count = 1;                       ///< in a step
  bool requires_gradient_sync = true;  ///< as set for all of them but the last
  bool requires_all_reduce = true;     ///< as set for all of them but the last
};

/// A sharded model without its type: what optimizers, checkpoints and loaders need. A handle;
/// copies share the model.
class ShardedModule {
 public:
  /// Made by fully_shard().
  explicit ShardedModule(std::shared_ptr<detail::Runtime> runtime) : runtime_(std::move(runtime)) {}

  /// The ranks that the model is sharded over, replicas included.
  [[nodiscard]] const World& world() const;
  /// The ranks that the model is sharded over, replicas included.
  [[nodiscard]] World& world();
  /// This rank's part of every parameter, in registration order: the same names on every rank. Not
  /// collective. PyTorch: `named_parameters()` of sharded tensors.
  [[nodiscard]] std::vector<ParameterShard> parameter_shards() const;
  /// Other names of tied parameters, each with the name it stands for.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> tied_names() const;

  /// Rewrites the travelling shards from the masters after values were written from outside.
  /// Collective.
  void publish();
  /// Forgets gradients; the next backward writes instead of adding. PyTorch:
  /// `optimizer.zero_grad()`.
  void zero_grad();
  /// By how much gradients are divided when they are reduced; the number of ranks unless set. Must
  /// be > 0. PyTorch: `set_gradient_divide_factor`.
  void set_gradient_divide_factor(double factor);

  /// Which units a setting is for, by name ("root" is the root's); all of them where it is unset.
  using UnitFilter = std::function<bool(const std::string& unit)>;
  /// false: backward adds gradients to an fp32 buffer of the whole unit and communicates nothing;
  /// the next backward with true reduces their sum. Costs 4 bytes a parameter and rank. The same on
  /// all ranks. PyTorch: `set_requires_gradient_sync`, FSDP1's `no_sync`.
  void set_requires_gradient_sync(bool requires_sync, const UnitFilter& units = {});
  /// false, on a mesh with replicas: backward reduces within the shard group only; the next one
  /// with true sums over the replicas as well. PyTorch: `set_requires_all_reduce`.
  void set_requires_all_reduce(bool requires_all_reduce, const UnitFilter& units = {});
  /// false: parameters stay gathered after backward, for the next micro-batch. The optimizer's step
  /// reshards them in any case. PyTorch: `set_reshard_after_backward`.
  void set_reshard_after_backward(bool reshard, const UnitFilter& units = {});

  /// The units as text, one line each: name, parameters, dtypes, bytes gathered and bytes a rank.
  [[nodiscard]] std::string plan() const;
  /// One line that says in which dtypes parameters, gradients, their sums and masters are kept.
  [[nodiscard]] std::string dtypes() const;
  /// The engine's bytes on this rank.
  [[nodiscard]] const MemoryLedger& memory() const;
  /// The most bytes that memory() will hold in training steps, known before the first: what is held
  /// now (with the moments, once the optimizer is there), gradients and their sums, gathered units
  /// and the buffers of reductions. Not in it: activations, and evaluation in full precision. It
  /// holds for units used once a step; AdamWMode::in_backward needs less. Not collective. PyTorch:
  /// none.
  [[nodiscard]] int64_t planned_peak_bytes(const MicroBatches& micro_batches = {}) const;
  /// Begins the peak of memory() anew.
  void reset_peak_memory();
  /// Gathers, reductions and bytes so far. Not collective.
  [[nodiscard]] Communicator::Counts counts() const;

  /// The engine behind the handle.
  [[nodiscard]] detail::Runtime& runtime() const { return *runtime_; }

 protected:
  /// The unit that calls of the handle gather.
  [[nodiscard]] detail::UnitState* root_unit() const;
  std::shared_ptr<detail::Runtime> runtime_;  ///< shared by all handles of the model
};

/// The handle of a sharded model, and its root unit: parameters outside every `Unit` are gathered
/// by calling it.
template <class Holder>
class Sharded : public ShardedModule {
 public:
  /// Made by fully_shard().
  Sharded(Holder module, std::shared_ptr<detail::Runtime> runtime)
      : ShardedModule(std::move(runtime)), module_(std::move(module)) {}

  /// The model's `forward`. Collective, as is the backward of what it returns.
  template <class... Args>
  auto operator()(Args&&... args) {
    auto body = [module = module_](auto&&... value) mutable {
      return module->forward(std::forward<decltype(value)>(value)...);
    };
    return detail::call_unit(root_unit(), body, std::forward<Args>(args)...);
  }

  /// Calls `fn(model, args…)` with the root's parameters gathered: for methods other than
  /// `forward`, and for a loss computed with root parameters (the head). Collective.
  template <class Fn, class... Args>
  auto run(Fn&& fn, Args&&... args) {
    auto body = [module = module_, fn = std::forward<Fn>(fn)](auto&&... value) mutable {
      return std::invoke(fn, *module, std::forward<decltype(value)>(value)...);
    };
    return detail::call_unit(root_unit(), body, std::forward<Args>(args)...);
  }

  /// The module itself, for what needs no parameter. Its parameters are only valid inside a call.
  [[nodiscard]] Holder& module() { return module_; }

 private:
  Holder module_;
};

namespace detail {
[[nodiscard]] std::shared_ptr<Runtime> shard_module(
    const std::shared_ptr<torch::nn::Module>& module, const Mesh& mesh,
    const ShardOptions& options);
}

/// Shards the parameters of `module` over the mesh: each `Unit` inside it becomes a communication
/// unit, what no unit holds belongs to the root. Each rank keeps 1/W of every unit; the module's
/// parameters become views of memory that is there only while their unit runs.
///
/// Parameters with values (not on meta) must have the same values on every rank, since each keeps
/// its piece of its own: sync_module_states() makes them so. A tied parameter belongs to the
/// smallest unit that contains all its uses. Collective: all ranks call it with the same module and
/// options. Memory: the sharded state, 4 bytes an element and rank ÷ W, and `param_dtype` beside it
/// where that is not fp32. Throws Error(Usage), naming the parameter: sharded already, a scalar,
/// not contiguous, not floating-point. PyTorch: `fully_shard`.  Paper: FSDP, arXiv:2304.11277.
template <class Holder>
Sharded<Holder> fully_shard(Holder module, const Mesh& mesh, const ShardOptions& options = {}) {
  auto runtime = detail::shard_module(module.ptr(), mesh, options);
  return Sharded<Holder>(std::move(module), std::move(runtime));
}

/// Installs a handler that turns the fault of using a sharded parameter outside its unit into a
/// message that names unit and parameter, and ends the process with exit code 64; any other fault
/// stays what it is. For programs: a library must not take over signals by itself. Without it such
/// a use ends in a segmentation fault.
void explain_access_to_sharded_parameters();

}  // namespace sherd
