#pragma once
// Ranks as threads of the test, each with a fake device, over fake NCCL.

#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include "sherd/world.h"

namespace sherd::fake {

/// Calls `body(world)` for each rank on a thread of its own, whose device is the rank's, and waits
/// for all. The first exception is thrown again, by rank, after all have ended.
void run_ranks_on_devices(int ranks, const std::function<void(World)>& body,
                          ReduceScatter way = ReduceScatter::RankOrder);

/// As long as it lives, memory that streams use may not go; then they come to their end, or, while
/// an exception passes, no rank waits for another any more. Declared behind a model. Does nothing
/// on the host.
class StreamsEndFirst {
 public:
  explicit StreamsEndFirst(World world) : world_(std::move(world)) {}
  StreamsEndFirst(const StreamsEndFirst&) = delete;
  StreamsEndFirst& operator=(const StreamsEndFirst&) = delete;
  ~StreamsEndFirst();

 private:
  World world_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace sherd::fake
