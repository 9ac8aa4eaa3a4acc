#include "llm/plan/plan_beside_estimate.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace llm::plan {

namespace {

constexpr int kRanks = 8;
constexpr std::int64_t kSamples = 4, kSampleTokens = 2048;
constexpr const char* kDevice = "a100-80g";

// The setting that estimates are given for.
config::RunConfig estimated(config::RunConfig config, int hosts) {
  config.parallel.strategy = config::Strategy::FullShard;
  config.parallel.shard_size = std::nullopt;
  config.parallel.reshard_after_forward_size = std::nullopt;
  config.precision = {.param_dtype = config::ParamDtype::BFloat16};
  config.memory = {.activation_checkpointing = true};
  config.data.max_length = kSampleTokens;
  config.data.eval.clear();
  config.train.micro_batch = kSamples;
  config.train.global_batch = kSamples * kRanks * hosts;
  return config;
}

struct PlannerOfEstimates {
  const setup::ModelShape& shape;
  std::optional<double> link_gb_per_second;

  [[nodiscard]] RunPlan plan(const config::RunConfig& config, int hosts) const {
    PlannedHosts on{device_of_name(kDevice), hosts, kRanks};
    on.link_gb_per_second = link_gb_per_second;
    return plan_run(config, shape, on, planned_batches(config, shape.shapes->context_length()));
  }
};

EstimatedStep estimated_step(const RunPlan& plan) {
  return {plan.memory, plan.constant_bytes, plan.time};
}

}  // namespace

std::optional<PlanBesideEstimate> plan_beside_estimate(const config::RunConfig& config,
                                                       const setup::ModelShape& shape,
                                                       std::optional<double> link_gb_per_second) {
  const model::DecoderConfig& decoder = shape.config.shape;
  const auto estimate = usual_estimate_of(decoder);
  if (!estimate) {
    return std::nullopt;
  }
  const PlannerOfEstimates planner{shape, link_gb_per_second};
  const config::RunConfig one_host = estimated(config, 1);
  config::RunConfig kept = one_host, narrow = one_host;
  kept.memory.activation_checkpointing = false;
  narrow.precision.moments = config::MomentsDtype::BFloat16;
  const RunPlan checkpointed = planner.plan(one_host, 1);
  const PlansBesideEstimate plans{.device = kDevice,
                                  .ranks = kRanks,
                                  .tokens = kSamples * kSampleTokens,
                                  .checkpointed = estimated_step(checkpointed),
                                  .kept = estimated_step(planner.plan(kept, 1)),
                                  .narrow = estimated_step(planner.plan(narrow, 1)),
                                  .across_hosts = planner.plan(estimated(config, 2), 2).time,
                                  .tokens_per_second = checkpointed.tokens_per_second};
  return PlanBesideEstimate{
      estimate->model,
      fmt::format(
          "full_shard in bfloat16 on {} x {} of one host, {} x {} tokens per GPU, checkpointed",
          kRanks, kDevice, kSamples, kSampleTokens),
      beside_estimate(*estimate, decoder, plans)};
}

nlohmann::ordered_json json_of(const PlanBesideEstimate& beside) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const EstimateRow& row : beside.rows) {
    rows.push_back(
        {{"what", row.what}, {"usual", row.usual}, {"planned", row.planned}, {"why", row.why}});
  }
  return {{"model", beside.model}, {"setting", beside.setting}, {"rows", std::move(rows)}};
}

std::string to_text(const PlanBesideEstimate& beside) {
  std::string text = fmt::format(
      "the usual estimate for {} next to a plan, in GB for all GPUs, or for one where it says per "
      "GPU:\n  planned: {}\n  {:<33} {:>16} {:>8}",
      beside.model, beside.setting, "", "usual", "planned");
  for (const EstimateRow& row : beside.rows) {
    text +=
        fmt::format("\n  {:<33} {:>16} {:>8}{}{}", row.what, row.usual.empty() ? "-" : row.usual,
                    row.planned, row.why.empty() ? "" : "  ", row.why);
  }
  return text;
}

}  // namespace llm::plan
