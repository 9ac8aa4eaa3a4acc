#pragma once
// The engine's peak, computed before a step from layouts alone (docs/design/memory.md).

#include <cstdint>

#include "sherd/sharded_module.h"

namespace sherd::detail {

struct Model;

/// See ShardedModule::planned_peak_bytes().
[[nodiscard]] int64_t planned_peak_bytes(const Model& model, const MicroBatches& micro_batches);

}  // namespace sherd::detail
