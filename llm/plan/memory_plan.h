#pragma once
// The memory of a rank in each phase of a run, computed before any of it is allocated.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "llm/io/hf_config.h"
#include "llm/plan/device.h"
#include "sherd/optim.h"
#include "sherd/options.h"
#include "sherd/world.h"

namespace llm::plan {

/// One micro-batch of a rank, by its samples.
struct MicroBatch {
  std::vector<std::int64_t> sample_tokens;      ///< of each sample
  std::vector<std::int64_t> supervised_tokens;  ///< of each sample, its last ones
};

/// A batch that is evaluated: its loss, and answers to what is not supervised of each sample.
struct PlannedEvaluation {
  MicroBatch batch;
  std::int64_t max_new_tokens = 0;  ///< of an answer; 0: none is generated
};

/// All that a step's memory depends on.
struct PlannedRun {
  io::HfConfig model;
  sherd::FakeRanks ranks;
  sherd::ShardOptions sharding;
  std::optional<int> shard_size = std::nullopt;  ///< of hybrid strategies; none: a host's ranks
  sherd::AdamWMode adamw = {};
  std::int64_t loss_chunk_tokens = 0;
  std::vector<MicroBatch> micro_batches;  ///< of a step, on this rank
  std::optional<PlannedEvaluation> evaluation = std::nullopt;
  Pooling pooling = {};
  std::int64_t libraries_bytes = 0;  ///< of other libraries, from the first step on
};

/// What is held at the worst moment of a phase.
struct PhasePlan {
  std::string name;
  std::int64_t total_bytes = 0;
  std::map<std::string, std::int64_t> items;  ///< by what asked for them
};

struct MemoryPlan {
  std::vector<PhasePlan> phases = {};  ///< load, forward, backward, optimizer, evaluation
  std::int64_t peak_bytes = 0;
  std::string peak_phase = {};
  std::string peak_item = {};  ///< the largest in that phase
};

/// Runs the model's own forward and backward, and the engine's own calls, on the meta device, and
/// counts. Takes as long as their bookkeeping, and no memory to speak of. Not collective. Throws
/// sherd::Error(Usage) for ranks and strategies that do not fit each other.
[[nodiscard]] MemoryPlan plan_memory(const PlannedRun& run);

/// {name: {total_bytes, items}} in the order of the phases.
[[nodiscard]] nlohmann::ordered_json phases_json(const MemoryPlan& plan);

}  // namespace llm::plan
