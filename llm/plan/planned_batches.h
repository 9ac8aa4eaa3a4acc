#pragma once
// The batches that a run is planned for.

#include <cstdint>
#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/run_data.h"
#include "llm/plan/planned_run.h"

namespace llm::plan {

struct PlannedBatches {
  MicroBatch training;                              ///< the micro-batch that takes most memory
  std::vector<std::int64_t> training_samples = {};  ///< its samples; none without data
  MicroBatch typical;        ///< one that takes as long as the longest of its ranks does on average
  double tokens_a_step = 0;  ///< of all ranks, on average
  std::optional<PlannedEvaluation> evaluation = std::nullopt;  ///< none: nothing is evaluated
  std::string source;  ///< for people: where the lengths of the training batch are from
};

/// Those of any rank and step of the run.
[[nodiscard]] PlannedBatches planned_batches(const inputs::RunData& data,
                                             const config::RunConfig& config,
                                             const inputs::BatchShape& shape);
/// Where there is no data: samples of the greatest length, of which all is supervised in training,
/// and an answer's length in evaluation.
[[nodiscard]] PlannedBatches planned_batches(const config::RunConfig& config, std::int64_t context);

}  // namespace llm::plan
