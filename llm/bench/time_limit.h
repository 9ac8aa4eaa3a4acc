#pragma once
// How long a bench may take.

#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/bench/matmul_limit.h"
#include "sherd/world.h"

namespace llm::bench {

/// A step's time by the number of its operations and the rate of one small product, measured now:
/// less than it will take, seldom by half. Below a second of work.
[[nodiscard]] double estimated_step_seconds(const std::vector<MatmulShape>& products,
                                            c10::ScalarType dtype);

/// Throws sherd::Error(Usage) on all ranks if the slowest needs longer than `max_minutes`: nullopt
/// for no limit. `seconds_left`: this rank's estimate. Collective.
void check_time_left(double seconds_left, std::optional<double> max_minutes, sherd::World& world);

}  // namespace llm::bench
