#pragma once
// The batches of a run that take most memory.

#include <cstdint>
#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/data/batch.h"
#include "llm/plan/memory_plan.h"
#include "llm/train/run_data.h"

namespace llm::train {

struct LongestBatches {
  plan::MicroBatch training;
  std::optional<plan::PlannedEvaluation> evaluation = std::nullopt;  ///< none: nothing is evaluated
  std::string source;  ///< for people: where the lengths of the training batch are from
};

/// Those of any rank and step of the run.
[[nodiscard]] LongestBatches longest_batches(const RunData& data, const config::RunConfig& config,
                                             const data::BatchShape& shape);
/// Where there is no data: samples of the greatest length, of which all is supervised in training,
/// and an answer's length in evaluation.
[[nodiscard]] LongestBatches longest_batches(const config::RunConfig& config, std::int64_t context);

}  // namespace llm::train
