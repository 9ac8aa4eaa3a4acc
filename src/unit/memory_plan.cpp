#include <algorithm>

#include "comm/buffers.h"
#include "unit/model.h"

namespace sherd::detail {

namespace {

/// What the limits are made of, in elements per segment or counts.
struct Sizes {
  int64_t trained = 0;             ///< elements of all trainable segments
  int64_t sum_bytes = 0;           ///< of sums of their gradients
  int64_t largest_bytes = 0;       ///< of a trainable segment outside the root, when gathered
  int64_t largest_sum_bytes = 0;   ///< of the sum of such a one's gradients
  int64_t root_bytes = 0;          ///< of the root's trainable segments
  int64_t root_sum_bytes = 0;      ///< of sums of their gradients
  int64_t widened_root_bytes = 0;  ///< of those whose gradients are no sum until they are widened
  int64_t segments = 0;            ///< trainable ones outside the root
  int64_t written_at_once = 0;     ///< segments of a unit, times the levels that units are nested
  bool narrow = false;             ///< whether a block's gradients are no sum until widened
};

void add_segment(Sizes& sizes, const UnitState& unit, const SegmentLayout& layout) {
  const bool narrow = layout.dtype != layout.reduce_dtype;
  const int64_t sum_bytes =
      layout.numel() * static_cast<int64_t>(c10::elementSize(layout.reduce_dtype));
  sizes.trained += layout.numel();
  sizes.sum_bytes += sum_bytes;
  if (unit.is_root()) {
    sizes.root_sum_bytes += sum_bytes;
    sizes.root_bytes += layout.bytes();
    sizes.widened_root_bytes += narrow ? layout.bytes() : 0;
    return;
  }
  sizes.largest_bytes = std::max(sizes.largest_bytes, layout.bytes());
  sizes.largest_sum_bytes = std::max(sizes.largest_sum_bytes, sum_bytes);
  sizes.narrow = sizes.narrow || narrow;
  ++sizes.segments;
}

Sizes measure(const Model& model) {
  Sizes sizes;
  int64_t most_segments = 0;
  int levels = 1;
  for (const auto& unit : model.units) {
    int64_t trainable = 0;
    for (const auto& segment : unit->segments()) {
      if (segment->gradients() != nullptr) {
        add_segment(sizes, *unit, segment->layout());
        ++trainable;
      }
    }
    if (!unit->is_root()) {
      most_segments = std::max(most_segments, trainable);
      levels = std::max(levels, unit->level());
    }
  }
  sizes.written_at_once = most_segments * levels;
  return sizes;
}

// Whole units' gradients in the dtype that travels.
int64_t most_unreduced(const Sizes& sizes, int rows, bool accumulates) {
  if (rows > 1) {  // some are written while another is reduced
    const int64_t buffers = std::min(sizes.written_at_once + 1, sizes.segments + 1);
    return sizes.largest_bytes * buffers + sizes.root_bytes;
  }
  // Nothing travels within the row: gradients are written into their sum, unless they must be
  // widened to fp32 or added to one.
  const bool blocks = accumulates || sizes.narrow;
  return (blocks ? sizes.largest_bytes * sizes.written_at_once : 0) +
         (accumulates ? sizes.root_bytes : sizes.widened_root_bytes);
}

// Sums over the row, before they are summed over the replicas.
int64_t most_partial(const Sizes& sizes, const Model& model, const MicroBatches& micro_batches) {
  if (model.communicators->replicas == nullptr) {
    return 0;
  }
  const int rows = model.mesh.shard_size();
  const bool waits =
      micro_batches.count > 1 &&
      (!micro_batches.requires_all_reduce || (!micro_batches.requires_gradient_sync && rows == 1));
  const int64_t in_flight = (rows > 1 ? 3 : 1) + sizes.written_at_once;
  const int64_t blocks = waits ? sizes.segments : std::min(in_flight, sizes.segments);
  return (sizes.largest_sum_bytes * blocks + sizes.root_sum_bytes) / rows;
}

}  // namespace

// Units that are kept (as the root is), those gathered ahead, the running one and those around it.
int64_t gathered_limit_bytes(const Model& model) {
  int64_t kept = 0;
  int64_t largest = 0;
  int levels = 1;
  for (const auto& unit : model.units) {
    if (unit->is_root() || !unit->settings().reshard_after_forward ||
        !unit->backward_settings.reshard_after_backward) {
      kept += unit->gathered_bytes();
    } else {
      largest = std::max(largest, unit->gathered_bytes());
      levels = std::max(levels, unit->level());
    }
  }
  return kept + (model.options.prefetch_depth + levels) * largest;
}

// One that backward writes, those in flight, and the root's from the head to the embedding.
int64_t gradients_at_once_bytes(const Model& model, bool on_host) {
  const Sizes sizes = measure(model);
  const int64_t blocks = std::min<int64_t>(
      sizes.written_at_once + static_cast<int64_t>(kReductionsInFlight) + (on_host ? 1 : 0),
      sizes.segments);
  return (sizes.root_sum_bytes + blocks * sizes.largest_sum_bytes) / model.mesh.shard_size();
}

int64_t planned_peak_bytes(const Model& model, const MicroBatches& micro_batches) {
  const Sizes sizes = measure(model);
  const MemoryLedger& ledger = *model.ledger;
  const int rows = model.mesh.shard_size();
  const int replicas = model.mesh.replicate_size();
  const int64_t held = ledger.sharded_state_bytes() + ledger.bytes(MemoryKind::PostForwardShard) +
                       model.offload->most_in_memory_bytes();
  const int64_t all_sums = sizes.sum_bytes / rows;
  const bool on_host = model.offload->gradient_slots() != nullptr;
  const bool on_disk = !on_host && model.offload->file(Part::Gradients) != nullptr;
  const int64_t shards_of_sums =
      on_host ? std::min(gradients_at_once_bytes(model, on_host), all_sums) : all_sums;
  const int64_t sums = (on_disk ? 0 : shards_of_sums) + (replicas > 1 ? all_sums / replicas : 0);
  const bool accumulates = micro_batches.count > 1;
  const bool waits = !micro_batches.requires_gradient_sync ||
                     placements_of(model.options.strategy).gradients == Placement::Partial;
  const bool unsharded = accumulates && waits && rows > 1;
  const Communicator& shards = *model.communicators->shards;
  const int pieces =
      model.options.offload.parameters_on_host ? shards.world_size() : shards.gathered_pieces();
  int64_t received = 0;
  for (const Communicator* const one : model.communicators->all()) {
    received += one->most_received_bytes();
  }
  return held + sums + (unsharded ? 4 * sizes.trained : 0) +
         gathered_limit_bytes(model) * pieces / shards.world_size() +
         most_unreduced(sizes, rows, accumulates) + most_partial(sizes, model, micro_batches) +
         received;
}

}  // namespace sherd::detail
