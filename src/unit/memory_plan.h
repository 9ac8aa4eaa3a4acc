#pragma once
// The engine's peak, computed before a step from layouts alone (docs/design/memory.md).

#include <cstdint>

#include "sherd/sharded_module.h"

namespace sherd::detail {

struct Model;

/// See ShardedModule::planned_peak_bytes().
[[nodiscard]] int64_t planned_peak_bytes(const Model& model, const MicroBatches& micro_batches);

/// Of gradient shards: those of units that are written or reduced at the same time.
[[nodiscard]] int64_t reduced_at_once_bytes(const Model& model);
/// The same where they rest on the host: another one leaves.
[[nodiscard]] int64_t gradient_slot_bytes(const Model& model);

}  // namespace sherd::detail
