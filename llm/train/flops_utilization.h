#pragma once
// Which share of what its ranks could compute a run does compute.

#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/plan/model_flops.h"
#include "llm/plan/rates.h"
#include "llm/setup/load_model.h"
#include "llm/train/train_step.h"
#include "sherd/world.h"

namespace llm::train {

/// Model FLOPs utilization, MFU: of a step's real tokens, by the time of all of it and the peak of
/// all ranks.
struct FlopsUtilization {
  plan::ModelFlops model = {};
  std::optional<plan::Peak> peak = std::nullopt;  ///< of a rank; none: not known
  int ranks = 1;

  /// Of a step; none where the peak is not known, and of a step that computed nothing.
  [[nodiscard]] std::optional<double> of(const StepOutcome& step, double step_seconds) const;
  /// "mfu: the share of 110 GFLOP/s a rank, the fastest product that …"; empty where there is none.
  [[nodiscard]] std::string line() const;
};

/// That of a run on these ranks. Not collective; reads a file of the cache folder.
[[nodiscard]] FlopsUtilization flops_utilization(const config::RunConfig& config,
                                                 const setup::ModelShape& shape,
                                                 const sherd::World& world);

}  // namespace llm::train
