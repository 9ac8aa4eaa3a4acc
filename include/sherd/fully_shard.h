#pragma once
// fully_shard(): shards a module and returns its handle.

#include <functional>
#include <memory>
#include <utility>

#include "sherd/options.h"
#include "sherd/sharded_module.h"
#include "sherd/unit.h"
#include "sherd/world.h"

namespace sherd {

namespace detail {
/// Makes factory functions build on the meta device for the lifetime of the object.
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

/// Calls `build` with every new tensor on the meta device: shapes and dtypes without memory.
/// fully_shard() later allocates the parameters. Their values come from load_safetensors(),
/// load_from_rank0() or initialize(); buffers may also be filled in place. Affects the calling
/// thread only. Not collective. PyTorch: `with torch.device("meta")`.
template <class Build>
auto on_meta(Build&& build) {
  detail::MetaGuard guard;
  return std::forward<Build>(build)();
}

/// The handle of a sharded model, and its root unit: a call gathers the parameters outside every
/// `Unit`.
template <class Holder>
class Sharded : public ShardedModule {
 public:
  /// Called by fully_shard().
  Sharded(Holder module, std::shared_ptr<detail::Engine> engine)
      : ShardedModule(std::move(engine)), module_(std::move(module)) {}

  /// Runs the model's `forward`. Collective, as is the backward of its result. Throws Error: Usage
  /// if values are missing or torn (partly updated), or inside with_full_parameters(); PeerLost,
  /// Hang, RanksDisagree. PyTorch: a call of the FSDP module.
  template <class... Args>
  auto operator()(Args&&... args) {
    auto body = [module = module_](auto&&... value) mutable {
      return module->forward(std::forward<decltype(value)>(value)...);
    };
    return detail::call_unit(root_unit(), body, std::forward<Args>(args)...);
  }

  /// Calls `fn(model, args…)` with the root's parameters gathered. Use it for methods other than
  /// `forward`, and for a loss that uses root parameters (the head). Pass tensors of the step's
  /// graph as `args` instead of capturing them, so that the unit knows when their gradients are
  /// complete. Collective. Throws as operator() does. PyTorch: `register_fsdp_forward_method`.
  template <class Fn, class... Args>
  auto run(Fn&& fn, Args&&... args) {
    auto body = [module = module_, fn = std::forward<Fn>(fn)](auto&&... value) mutable {
      return std::invoke(fn, *module, std::forward<decltype(value)>(value)...);
    };
    return detail::call_unit(root_unit(), body, std::forward<Args>(args)...);
  }

  /// Returns the module itself, for uses without parameters. Its parameters are valid only inside a
  /// call.
  [[nodiscard]] Holder& module() { return module_; }

 private:
  Holder module_;
};

namespace detail {
class StorageFactory;
/// `factory`: makes storage of the model's state that comes from outside; null: none.
[[nodiscard]] std::shared_ptr<Engine> shard_module(const std::shared_ptr<torch::nn::Module>& module,
                                                   const Mesh& mesh, const ShardOptions& options,
                                                   const StorageFactory* factory = nullptr);
}  // namespace detail

/// Shards the parameters of `module` over the mesh. Each `Unit` inside it becomes a communication
/// unit; the root unit holds all other parameters. Each rank keeps 1/S of every unit, with S the
/// size of the shard group. The module's parameters become views of memory that exists only while
/// their unit runs.
///
/// Parameters with values (not on meta) must be equal on every rank, because each rank keeps its
/// own shard of them; sync_module_states() makes them equal. With replicas (NoShard, HybridShard)
/// the ranks compare a digest of them. A tied parameter belongs to the smallest unit that contains
/// all its uses. Parameters frozen now cannot be trained later; freezing later works.
///
/// Collective: all ranks call it with the same module and options. Memory per rank, with S = 1
/// under NoShard: 4 ÷ S bytes per element of a trainable parameter (the fp32 master), plus one
/// shard in `param_dtype` unless that is fp32. A frozen parameter has only the latter. Parameters
/// of integers, which are always frozen, keep their dtype: codes of quantized weights.
///
/// Throws Error:
/// - Usage, naming the parameter, if it is sharded already, a scalar, empty, not contiguous,
///   not Float, BFloat16, Byte, Char, Short, Int or Long, or neither on the CPU nor on meta; or if
///   it shares memory with another parameter;
/// - Usage for options out of range or a strategy that does not fit the mesh;
/// - RanksDisagree, on every rank, if models or options differ, or the values of replicas;
/// - OutOfMemory or Unavailable if memory is missing; PeerLost; Hang.
///
/// PyTorch: `fully_shard`.  Paper: FSDP, arXiv:2304.11277.
template <class Holder>
Sharded<Holder> fully_shard(Holder module, const Mesh& mesh, const ShardOptions& options = {}) {
  auto engine = detail::shard_module(module.ptr(), mesh, options);
  return Sharded<Holder>(std::move(module), std::move(engine));
}

/// Explains accesses to a sharded parameter outside its unit that bypass LibTorch. An access
/// through LibTorch's operators always throws `c10::Error`, which names unit and parameter, or the
/// unit for a view. An address that bypasses it causes a segmentation fault when it is read. After
/// this call, such a fault prints the same message and ends the process with exit code 64. Any
/// other fault is unchanged. CPU only. For programs: a library must not install signal handlers by
/// itself. Not collective. PyTorch: none.
void explain_access_to_sharded_parameters();

}  // namespace sherd
