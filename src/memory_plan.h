#pragma once
// The engine's peak, computed before a step from layouts alone (docs/design/memory.md).

#include <cstdint>

#include "sherd/sharded_module.h"

namespace sherd::detail {

class Runtime;

/// See ShardedModule::planned_peak_bytes().
[[nodiscard]] int64_t planned_peak_bytes(const Runtime& runtime, const MicroBatches& micro_batches);

}  // namespace sherd::detail
