#pragma once
// What a run will take: llm::plan, fed from a configuration and its data.

#include <cstdint>
#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/data/batch.h"
#include "llm/plan/device.h"
#include "llm/plan/memory_plan.h"
#include "llm/train/load_model.h"
#include "llm/train/run_data.h"

namespace llm::train {

/// Where a run is planned to be.
struct PlannedHosts {
  plan::Device device;
  int hosts = 1;
  int ranks = 1;  ///< of each host
  std::optional<std::int64_t> memory_bytes =
      std::nullopt;  ///< of a GPU, or of a host; else as found
};

/// The micro-batch that takes most memory: how many tokens its samples have, and how many of them
/// are supervised.
struct LongestBatch {
  plan::MicroBatch batch;
  std::string source;  ///< for people: where its lengths are from
};
/// That of any rank and step of the run.
[[nodiscard]] LongestBatch longest_batch(const RunData& data, const config::TrainSection& train,
                                         const data::BatchShape& shape);
/// Where there is no data: samples of the greatest length, of which all is supervised.
[[nodiscard]] LongestBatch longest_batch(const config::RunConfig& config, std::int64_t context);

struct RunPlan {
  std::string model;
  PlannedHosts hosts;
  std::string strategy;     ///< as the configuration has it
  std::string param_dtype;  ///< the same, chosen
  std::string batch;        ///< LongestBatch::source
  std::int64_t parameters = 0;
  plan::MemoryPlan memory;
  std::int64_t constant_bytes = 0;   ///< of a rank before anything is made
  std::int64_t available_bytes = 0;  ///< to a rank; 0: not known
  std::int64_t checkpoint_bytes = 0;

  [[nodiscard]] bool fits() const {
    return available_bytes == 0 || constant_bytes + memory.peak_bytes <= available_bytes;
  }
};

/// Not collective. Throws sherd::Error(Usage) for ranks that the strategy or the batch do not fit.
[[nodiscard]] RunPlan plan_run(const config::RunConfig& config, const ModelShape& shape,
                               const PlannedHosts& hosts, const LongestBatch& longest);

/// As `sherd plan --json` prints it.
[[nodiscard]] std::string to_json(const RunPlan& plan);
/// The same for people, in lines.
[[nodiscard]] std::string to_text(const RunPlan& plan);

}  // namespace llm::train
