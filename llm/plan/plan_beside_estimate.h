#pragma once
// Of a large Llama: what is usually estimated, beside a plan of the same setting.

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "llm/plan/run_plan.h"
#include "llm/plan/usual_estimate.h"

namespace llm::plan {

struct PlanBesideEstimate {
  std::string model;    ///< "Llama 3 8B"
  std::string setting;  ///< for people: what is planned
  std::vector<EstimateRow> rows;
};

/// Plans what such estimates are made of, with `config`'s other settings: 8 GPUs of one host, 4
/// samples of 2048 tokens each. The GPU is an A100 of 80 GB, which the estimate's speed is of. None
/// where there is no estimate of the shape. Not collective. Throws as plan_run().
[[nodiscard]] std::optional<PlanBesideEstimate> plan_beside_estimate(
    const config::RunConfig& config, const setup::ModelShape& shape,
    std::optional<double> link_gb_per_second);

/// {model, setting, rows: [{what, usual, planned, why}]}.
[[nodiscard]] nlohmann::ordered_json json_of(const PlanBesideEstimate& beside);
/// A table for people.
[[nodiscard]] std::string to_text(const PlanBesideEstimate& beside);

}  // namespace llm::plan
