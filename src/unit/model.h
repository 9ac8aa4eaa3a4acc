#pragma once
// A sharded model as plain data: what is sharded, and where. What happens to it in a step is in
// step/step.h.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/options.h"
#include "sherd/world.h"
#include "storage/gather_arena.h"
#include "unit/collectives.h"
#include "unit/model_buffer.h"
#include "unit/model_communicators.h"
#include "unit/unit_state.h"

namespace sherd::detail {

struct Model {
  /// Compares what the ranks are about to shard, allocates it, and takes over the parameters'
  /// values. Travelling shards are written by Step::publish(). `mesh`: rows are the groups that
  /// parameters are cut over. Collective.
  Model(Mesh mesh, ShardOptions options, std::vector<UnitPlan> plans,
        std::vector<ModelBuffer> buffers);
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
  std::vector<int> first_order;                   ///< ShardOptions::forward_order as indices
  std::vector<ModelBuffer> buffers;
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

}  // namespace sherd::detail
