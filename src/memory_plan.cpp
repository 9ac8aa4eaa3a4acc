#include "memory_plan.h"

#include <algorithm>

#include "communicators/reduce_buffers.h"
#include "runtime.h"

namespace sherd::detail {

namespace {

/// What the limits are made of, in elements per segment or counts.
struct Model {
  int64_t trained = 0;             ///< elements of all trainable segments
  int64_t largest_bytes = 0;       ///< of a trainable segment outside the root, when gathered
  int64_t largest = 0;             ///< its elements
  int64_t root_bytes = 0;          ///< of the root's trainable segments
  int64_t root = 0;                ///< their elements
  int64_t widened_root_bytes = 0;  ///< of those whose gradients are no sum until they are widened
  int64_t segments = 0;            ///< trainable ones outside the root
  int64_t written_at_once = 0;     ///< segments of a unit, times the levels that units are nested
  bool narrow = false;             ///< whether a block's gradients travel in less than fp32
};

void add_segment(Model& model, const UnitState& unit, const SegmentLayout& layout) {
  const bool narrow = layout.dtype != c10::ScalarType::Float;
  model.trained += layout.numel();
  if (unit.is_root()) {
    model.root += layout.numel();
    model.root_bytes += layout.bytes();
    model.widened_root_bytes += narrow ? layout.bytes() : 0;
    return;
  }
  model.largest_bytes = std::max(model.largest_bytes, layout.bytes());
  model.largest = std::max(model.largest, layout.numel());
  model.narrow = model.narrow || narrow;
  ++model.segments;
}

Model measure(const Runtime& runtime) {
  Model model;
  int64_t most_segments = 0;
  int levels = 1;
  for (const auto& unit : runtime.units()) {
    int64_t trainable = 0;
    for (const auto& segment : unit->segments()) {
      if (segment->gradients() != nullptr) {
        add_segment(model, *unit, segment->layout());
        ++trainable;
      }
    }
    if (!unit->is_root()) {
      most_segments = std::max(most_segments, trainable);
      levels = std::max(levels, unit->level());
    }
  }
  model.written_at_once = most_segments * levels;
  return model;
}

// Whole units' gradients in the dtype that travels.
int64_t most_unreduced(const Model& model, int rows, bool accumulates) {
  if (rows > 1) {  // some are written while another travels
    const int64_t buffers = std::min(model.written_at_once + 1, model.segments + 1);
    return model.largest_bytes * buffers + model.root_bytes;
  }
  // Nothing travels within the row: gradients are born in their sum, unless they must be widened,
  // or added to one.
  const bool blocks = accumulates || model.narrow;
  return (blocks ? model.largest_bytes * model.written_at_once : 0) +
         (accumulates ? model.root_bytes : model.widened_root_bytes);
}

// Sums over the row, before they are summed over the replicas.
int64_t most_partial(const Model& model, const Runtime& runtime,
                     const MicroBatches& micro_batches) {
  if (runtime.communicators().replicas() == nullptr) {
    return 0;
  }
  const int rows = runtime.mesh().shard_size();
  const bool waits =
      micro_batches.count > 1 &&
      (!micro_batches.requires_all_reduce || (!micro_batches.requires_gradient_sync && rows == 1));
  const int64_t in_flight = (rows > 1 ? 3 : 1) + model.written_at_once;
  const int64_t blocks = waits ? model.segments : std::min(in_flight, model.segments);
  return 4 * (model.largest * blocks + model.root) / rows;
}

}  // namespace

int64_t planned_peak_bytes(const Runtime& runtime, const MicroBatches& micro_batches) {
  const Model model = measure(runtime);
  const MemoryLedger& ledger = *runtime.ledger();
  const int rows = runtime.mesh().shard_size();
  const int replicas = runtime.mesh().replicate_size();
  const int64_t held = ledger.sharded_state_bytes() + ledger.bytes(MemoryKind::PostForwardShard);
  const int64_t sums =
      4 * model.trained / rows + (replicas > 1 ? 4 * model.trained / rows / replicas : 0);
  const bool accumulates = micro_batches.count > 1;
  const bool unsharded = accumulates && !micro_batches.requires_gradient_sync && rows > 1;
  const bool in_slots = !runtime.communicators().shards().gathers_in_place();
  return held + sums + (unsharded ? 4 * model.trained : 0) +
         (in_slots ? runtime.gathered_limit_bytes() : 0) +
         most_unreduced(model, rows, accumulates) + most_partial(model, runtime, micro_batches) +
         runtime.communicators().most_received_bytes();
}

}  // namespace sherd::detail
