#pragma once
// A sharded model as plain data: what is sharded, and where. What happens to it in a step is in
// step/step.h.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/options.h"
#include "sherd/sharded_module.h"
#include "sherd/world.h"
#include "storage/gather_arena.h"
#include "unit/collectives.h"
#include "unit/communicators.h"
#include "unit/unit_state.h"

namespace sherd::detail {

/// A buffer of the model, once however many names it has.
struct ModelBuffer {
  std::string name;                  ///< qualified, of its first owner
  std::vector<std::string> aliases;  ///< other names of the same tensor
  at::Tensor tensor;                 ///< the module's own
  bool has_values = true;            ///< false: built on meta and not written yet
  uint32_t version = 0;              ///< of a buffer built on meta, when it got memory

  /// Whether a module inside `unit` has it.
  [[nodiscard]] bool is_inside(const std::string& unit) const;
  /// Values are also there once an operator has written the buffer in place.
  [[nodiscard]] bool is_written() const { return has_values || tensor._version() != version; }
};

/// Gathers the names of each tensor. Gives those on meta memory of zeros, and moves and casts the
/// others: to `device`, and floating-point ones to `dtype`, where it is set.
[[nodiscard]] std::vector<ModelBuffer> take_over_buffers(
    const std::vector<std::pair<std::string, at::Tensor>>& named, c10::Device device,
    const std::optional<c10::ScalarType>& dtype);

struct Model {
  /// Compares what the ranks are about to shard, allocates it, and takes over the parameters'
  /// values. Travelling shards are written by Step::publish(). `mesh`: rows are the groups that
  /// parameters are cut over. `factory`: may be null. Collective.
  Model(Mesh mesh, ShardOptions options, std::vector<UnitPlan> plans,
        std::vector<ModelBuffer> buffers, const StorageFactory* factory);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  Mesh mesh;
  ShardOptions options;
  std::shared_ptr<MemoryLedger> ledger = std::make_shared<MemoryLedger>();
  GatherArena arena;
  std::optional<Stores> offload;  ///< set by the constructor
  Collectives collectives;
  std::vector<std::unique_ptr<UnitState>> units;  ///< in registration order; the first is the root
  std::vector<SegmentOfUnit> segments;            ///< of all units, in their order
  std::vector<SegmentOfUnit> trainable;           ///< those of them that have gradients
  std::vector<int> first_order;                   ///< ShardOptions::forward_order as indices
  std::vector<ModelBuffer> buffers;
  /// How values of replicas differed in fully_shard(), until something writes values; empty: not.
  std::string replicas_differ;
  /// Returns the name of a parameter that was registered after fully_shard(); empty: none.
  std::function<std::string()> late_parameter;
  // After what they read and write: where giving up has failed, they end it when they go.
  std::unique_ptr<ModelCommunicators> communicators;
};

/// Calls `visit(unit, parameter, held)` for each parameter in registration order; `held` is the
/// part that this rank holds, which may be empty.
template <class Visit>
void for_each_held_part(const Model& model, Visit&& visit) {
  for (const auto& unit : model.units) {
    for (UnitParameter& parameter : unit->parameters()) {
      visit(*unit, parameter, unit->held_part(parameter));
    }
  }
}

/// Waits until no rank reads the segment's shards, which may be written then until they are
/// published. Collective.
void begin_update(Model& model, const SegmentOfUnit& of);
/// Communicator::check_exchanges() of all; `wait`: for the device, where it is. Not collective.
void check_exchanges(
    Model& model, const std::function<void()>& wait = [] {});
/// Gives back the memory of what rests on a disk, if anything does.
void rest(Model& model);
/// Of the slots that units are gathered in, in a training step.
[[nodiscard]] int64_t gathered_limit_bytes(const Model& model);
/// Throws Error(Usage), naming `operation`, for what was built on meta and has no values yet.
void require_values(const Model& model, const std::string& operation);

/// Throws Error(Usage) if the module has parameters that were registered after fully_shard().
void require_all_sharded(const Model& model);

/// Runs `build`, which makes the model's units, and compares units, shapes, dtypes and options.
/// Collective. Throws on every rank: what `build` threw on one of them, as agree() does;
/// Error(RanksDisagree), naming the first rank that differs from rank 0, and in what.
void build_and_compare(Model& model, const std::function<void()>& build);

/// Throws Error(RanksDisagree), naming the first rank whose text differs from rank 0's, and the
/// first line that does. `all`: by rank, with a line per field.
void compare_ranks(const char* operation, const std::vector<std::string>& all,
                   const std::string& remedy);

/// See ShardedModule::planned_peak_bytes().
[[nodiscard]] int64_t planned_peak_bytes(const Model& model, const MicroBatches& micro_batches);

/// Of gradient shards of units that are written or reduced at the same time. `on_host`: where they
/// are offloaded to the host, another one is copied there meanwhile.
[[nodiscard]] int64_t gradients_at_once_bytes(const Model& model, bool on_host);

/// As ShardedModule::parameter_shards(), without gradients: what backward left is neither scaled
/// nor shown, so that the gradient norm taken while it was added up stays known.
[[nodiscard]] std::vector<ParameterShard> value_shards(const Model& model);

}  // namespace sherd::detail
