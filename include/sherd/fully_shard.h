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
/// place. Holds for what the calling thread builds. Not collective. PyTorch: `with
/// torch.device("meta")`.
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

  /// The model's `forward`. Collective, as is the backward of what it returns. Throws Error: Usage
  /// where values are torn or not there yet, or inside with_full_parameters(); PeerLost, Hang,
  /// RanksDisagree. PyTorch: a call of the FSDP module.
  template <class... Args>
  auto operator()(Args&&... args) {
    auto body = [module = module_](auto&&... value) mutable {
      return module->forward(std::forward<decltype(value)>(value)...);
    };
    return detail::call_unit(root_unit(), body, std::forward<Args>(args)...);
  }

  /// Calls `fn(model, args…)` with the root's parameters gathered: for methods other than
  /// `forward`, and for a loss computed with root parameters (the head). Tensors that belong to the
  /// step's graph are passed as `args`, not captured, so that the unit knows when their gradients
  /// are done. Collective. Throws as a call does. PyTorch: `register_fsdp_forward_method`.
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
/// unit, what no unit holds belongs to the root. Each rank keeps 1/S of every unit, S being the
/// size of the shard group; the module's parameters become views of memory that is there only while
/// their unit runs.
///
/// Parameters with values (not on meta) must have the same values on every rank, since each keeps
/// its piece of its own: sync_module_states() makes them so. A tied parameter belongs to the
/// smallest unit that contains all its uses. What is frozen now cannot be trained later; freezing
/// later works.
///
/// Collective: all ranks call it with the same module and options. Memory on each rank, S being 1
/// under NoShard: 4 ÷ S bytes for each element of a trainable parameter (the fp32 master), and the
/// same elements once more in `param_dtype` where that is not fp32; a frozen parameter has only the
/// latter. Throws Error: Usage, naming the parameter, for one that is sharded already, a scalar,
/// empty, not contiguous, neither Float nor BFloat16, or neither on the CPU nor on meta; Usage for
/// options out of range or a strategy that the mesh does not fit; RanksDisagree, on every rank,
/// where models or options differ; OutOfMemory or Unavailable for want of memory; PeerLost, Hang.
/// PyTorch: `fully_shard`.  Paper: FSDP, arXiv:2304.11277.
template <class Holder>
Sharded<Holder> fully_shard(Holder module, const Mesh& mesh, const ShardOptions& options = {}) {
  auto engine = detail::shard_module(module.ptr(), mesh, options);
  return Sharded<Holder>(std::move(module), std::move(engine));
}

/// Explains the use of a sharded parameter outside its unit also where memory is read past
/// LibTorch. A use through LibTorch's operators throws `c10::Error`, which names unit and
/// parameter, with or without this. A view or an address kept from inside a call faults when it is
/// read: after this call the fault prints the same message and ends the process with exit code 64;
/// without it, it is a segmentation fault. Any other fault stays what it is. CPU only. For
/// programs: a library must not take over signals by itself. Not collective. PyTorch: none.
void explain_access_to_sharded_parameters();

}  // namespace sherd
