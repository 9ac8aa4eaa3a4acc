#pragma once
// fully_shard(): applies sharding to a module and returns the handle it is used through.

#include <functional>
#include <memory>
#include <utility>

#include "sherd/mesh.h"
#include "sherd/options.h"
#include "sherd/sharded_module.h"
#include "sherd/unit.h"

namespace sherd {

namespace detail {
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

/// The handle of a sharded model, and its root unit: parameters outside every `Unit` are gathered
/// by calling it.
template <class Holder>
class Sharded : public ShardedModule {
 public:
  /// Made by fully_shard().
  Sharded(Holder module, std::shared_ptr<detail::Engine> engine)
      : ShardedModule(std::move(engine)), module_(std::move(module)) {}

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
[[nodiscard]] std::shared_ptr<Engine> shard_module(const std::shared_ptr<torch::nn::Module>& module,
                                                   const Mesh& mesh, const ShardOptions& options);
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
  auto engine = detail::shard_module(module.ptr(), mesh, options);
  return Sharded<Holder>(std::move(module), std::move(engine));
}

/// Installs a handler that turns the fault of using a sharded parameter outside its unit into a
/// message that names unit and parameter, and ends the process with exit code 64; any other fault
/// stays what it is. For programs: a library must not take over signals by itself. Without it such
/// a use ends in a segmentation fault.
void explain_access_to_sharded_parameters();

}  // namespace sherd
