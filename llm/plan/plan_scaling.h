#pragma once
// What more GPUs would do to a step: each of them with the batch that one has.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "llm/plan/run_plan.h"

namespace llm::plan {

/// A step on as many GPUs.
struct ScaledStep {
  int ranks = 1;
  int hosts = 1;
  StepTime time = {};
  double tokens_per_second = 0;              ///< of a rank
  std::optional<double> mfu = std::nullopt;  ///< as FlopsUtilization; none: no peak is known
  std::int64_t needed_bytes = 0;             ///< of a rank at its most
  bool fits = false;
};

/// 1, 2, 4, … GPUs of a host with `gpus_of_a_host`, and 2, 4, 8, … such hosts, to 1,024 GPUs. Each
/// GPU computes in a step what one of `hosts` does: the global batch grows with them. Numbers of
/// GPUs that the strategy does not fit are left out. A plan each. Not collective. Throws
/// sherd::Error(Usage) for a device that is no GPU.
[[nodiscard]] std::vector<ScaledStep> plan_scaling(const config::RunConfig& config,
                                                   const setup::ModelShape& shape,
                                                   const PlannedHosts& hosts, int gpus_of_a_host,
                                                   const PlannedBatches& batches);

/// [{ranks, hosts, step_seconds, exposed_communication_seconds, tokens_per_second_per_rank, mfu,
/// needed_bytes, fits}].
[[nodiscard]] nlohmann::ordered_json json_of(const std::vector<ScaledStep>& steps);
/// A table for people.
[[nodiscard]] std::string to_text(const std::vector<ScaledStep>& steps);

}  // namespace llm::plan
