#pragma once
// The memory of a rank in each phase of a run, computed before any of it is allocated.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "llm/plan/planned_run.h"

namespace llm::plan {

/// The item of what other libraries keep (PlannedRun::libraries_bytes).
inline constexpr const char* kLibrariesItem = "oneDNN and MKL";

/// The item of what LibTorch gives cuBLAS (PlannedRun::workspaces_bytes).
inline constexpr const char* kWorkspacesItem = "workspaces of cuBLAS";

/// The item of what is in memory of what rests on a disk or the host.
inline constexpr const char* kOffloadItem = "slots of what is offloaded";

/// The item of the memory that graphs of micro-batches share.
inline constexpr const char* kGraphsItem = "memory of graphs";

/// What is held at the worst moment of a phase.
struct PhasePlan {
  std::string name;
  std::int64_t total_bytes = 0;
  std::map<std::string, std::int64_t> items;  ///< by what asked for them
};

/// What a rank holds in each phase.
struct MemoryPlan {
  std::vector<PhasePlan> phases = {};  ///< load, forward, backward, optimizer, evaluation
  std::int64_t peak_bytes = 0;         ///< of the worst phase
  std::string peak_phase = {};         ///< where most is in use
  std::string peak_item = {};          ///< the largest in that phase
  std::int64_t offloaded_bytes = 0;    ///< that rest on a disk
  std::int64_t host_bytes = 0;         ///< pinned, of a device's host
  std::int64_t page_bytes = 0;         ///< at most, of that host, of what goes to a disk or comes
};

/// Runs the model's own forward and backward, and the engine's own calls, on the meta device, and
/// counts. Takes as long as their bookkeeping, and no memory to speak of. Not collective. Throws
/// sherd::Error(Usage) for ranks and strategies that do not fit each other.
[[nodiscard]] MemoryPlan plan_memory(const PlannedRun& run);

/// {name: {total_bytes, items}} in the order of the phases.
[[nodiscard]] nlohmann::ordered_json phases_json(const MemoryPlan& plan);

}  // namespace llm::plan
