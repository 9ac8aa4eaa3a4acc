#pragma once
// Which settings of a run fit, and which of them is the fastest.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llm/plan/run_plan.h"

namespace llm::plan {

/// A setting that fits.
struct FittingSetting {
  std::vector<std::pair<std::string, std::string>> set;  ///< key and value, as flags take them
  RunPlan plan;
};

/// The batches of a run as it is configured.
using BatchesOf = std::function<PlannedBatches(const config::RunConfig&)>;

/// Strategies and micro-batches (divisors of a rank's samples of a step), each with what it needs
/// to fit and no more of activation checkpointing and 16-bit moments; the fastest first. A plan
/// each: a second or two of all. Not collective. Throws as plan_run() does.
[[nodiscard]] std::vector<FittingSetting> search_plans(const config::RunConfig& config,
                                                       const setup::ModelShape& shape,
                                                       const PlannedHosts& hosts,
                                                       const BatchesOf& batches_of);

/// What `train.micro_batch = "auto"` becomes: the fastest that fits with all else as it is; none
/// where none does.
[[nodiscard]] std::optional<std::int64_t> fastest_micro_batch(const config::RunConfig& config,
                                                              const setup::ModelShape& shape,
                                                              const PlannedHosts& hosts,
                                                              const BatchesOf& batches_of);

/// "train.micro_batch: 4, the fastest that fits".
[[nodiscard]] std::string micro_batch_line(const std::optional<std::int64_t>& fastest);

/// Of those that are within 1 % of the fastest, the one that takes least memory. `found` as
/// search_plans() has it, and not empty.
[[nodiscard]] const FittingSetting& recommended(const std::vector<FittingSetting>& found);

/// The plan with `search`: [{set, peak_bytes, tokens_per_second}], and `recommended`: a set.
[[nodiscard]] nlohmann::ordered_json json_of(const RunPlan& plan,
                                             const std::vector<FittingSetting>& found);
/// A table, and the recommended one as flags.
[[nodiscard]] std::string to_text(const std::vector<FittingSetting>& found);

}  // namespace llm::plan
