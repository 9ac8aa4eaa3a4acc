#include "llm/train/flops_utilization.h"

#include <fmt/core.h>

#include "llm/plan/run_plan.h"
#include "llm/setup/options_of_config.h"
#include "llm/train/start.h"

namespace llm::train {

std::optional<double> FlopsUtilization::of(const StepOutcome& step, double step_seconds) const {
  if (!peak || step_seconds <= 0 || step.supervised_tokens == 0) {
    return std::nullopt;
  }
  const double could = peak->operations_per_second * ranks * step_seconds;
  return model.of(step.tokens, step.supervised_tokens, step.attended_pairs) / could;
}

std::string FlopsUtilization::line() const {
  return peak ? fmt::format("mfu: the share of {:.4g} GFLOP/s per rank, {}",
                            peak->operations_per_second / 1e9, peak->source)
              : "";
}

FlopsUtilization flops_utilization(const config::RunConfig& config, const setup::ModelShape& shape,
                                   const sherd::World& world) {
  const plan::PlannedHosts hosts = plan::hosts_of(world);
  return {plan::model_flops(*shape.shapes, shape.config.shape),
          plan::peak_of(hosts.device, {hosts.ranks, hosts.threads},
                        *setup::shard_options(config).precision.param_dtype),
          world.size()};
}

}  // namespace llm::train
