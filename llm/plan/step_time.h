#pragma once
// How long a step takes: its operators at the rates of the machine, and what its ranks exchange.

#include <cstdint>

#include "llm/plan/planned_run.h"
#include "llm/plan/rates.h"

namespace llm::plan {

struct StepTime {
  double step_seconds = 0;
  double exposed_communication_seconds = 0;  ///< of that, what waits for a link, also to the host
  double disk_bytes = 0;  ///< a rank reads and writes, for which there is no time in it
};

/// Runs a step on the meta device and adds up, operator by operator in the engine's own order, what
/// each takes; collectives over links run beside them, one after the other, and hold up what waits
/// for them. Not collective. Throws as plan_memory() does.
[[nodiscard]] StepTime plan_step_time(const PlannedRun& run, const Rates& rates,
                                      const Links& links);

/// Returns the number of elements of the model's parameters, on all ranks together.
[[nodiscard]] double elements_of(const PlannedRun& run);

/// How many shards the optimizer's part of the model is cut into; each rank updates one.
[[nodiscard]] int shards_of(const PlannedRun& run);

}  // namespace llm::plan
