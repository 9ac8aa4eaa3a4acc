#pragma once
// Ranks as threads of the test, each with a fake device, over fake NCCL.

#include <chrono>
#include <functional>

#include "sherd/world.h"

namespace sherd::fake {

/// Calls `body(world)` for each rank on a thread of its own, whose device is the rank's, and waits
/// for all. The first exception is thrown again, by rank, after all have ended.
void run_ranks_on_devices(int ranks, const std::function<void(World)>& body);

}  // namespace sherd::fake
