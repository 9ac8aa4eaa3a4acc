#include "llm/plan/plan_scaling.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "llm/inputs/data_options.h"
#include "llm/plan/model_flops.h"
#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace llm::plan {

namespace {

constexpr int kMostGpus = 1024;

std::vector<PlannedHosts> larger_and_larger(const PlannedHosts& hosts, int gpus_of_a_host) {
  std::vector<PlannedHosts> found;
  const auto add = [&](int count, int ranks) {
    found.push_back(hosts);
    found.back().hosts = count;
    found.back().ranks = ranks;
  };
  for (int ranks = 1; ranks < gpus_of_a_host; ranks *= 2) {
    add(1, ranks);
  }
  for (int count = 1; count * gpus_of_a_host <= kMostGpus; count *= 2) {
    add(count, gpus_of_a_host);
  }
  return found;
}

double flops_of(const setup::ModelShape& model, const MicroBatch& batch) {
  std::int64_t tokens = 0, supervised = 0;
  double pairs = 0;
  for (const std::int64_t length : batch.sample_tokens) {
    tokens += length;
    pairs += model.config.shape.seen_pairs(length);
  }
  for (const std::int64_t count : batch.supervised_tokens) {
    supervised += count;
  }
  return model_flops(*model.shapes, model.config.shape)
      .of(tokens, supervised, static_cast<std::int64_t>(pairs));
}

// What a rank does in a step, however many there are.
struct WorkOfARank {
  std::int64_t samples = 0;
  double tokens = 0;
  double flops = 0;
  std::optional<Peak> peak = std::nullopt;
};

WorkOfARank work_of(const RunPlan& plan, const setup::ModelShape& shape,
                    const PlannedBatches& batches, const config::TrainSection& train) {
  const int ranks = plan.hosts.hosts * plan.hosts.ranks;
  const auto micro_batches =
      static_cast<double>(inputs::batch_shape(train, ranks).micro_batches(train.global_batch));
  const c10::ScalarType dtype =
      plan.weights.dtype == "float32" ? c10::kFloat : plan.hosts.device.auto_dtype;
  return {train.global_batch / ranks, batches.tokens_a_step / ranks,
          micro_batches * flops_of(shape, batches.typical),
          peak_of(plan.hosts.device, {plan.hosts.ranks, plan.hosts.threads}, dtype)};
}

ScaledStep scaled_step(const RunPlan& plan, const WorkOfARank& work) {
  const double seconds = plan.time.step_seconds;
  return {.ranks = plan.hosts.hosts * plan.hosts.ranks,
          .hosts = plan.hosts.hosts,
          .time = plan.time,
          .tokens_per_second = work.tokens / seconds,
          .mfu = work.peak ? std::optional(work.flops / seconds / work.peak->operations_per_second)
                           : std::nullopt,
          .needed_bytes = plan.needed_bytes(),
          .fits = plan.fits()};
}

}  // namespace

std::vector<ScaledStep> plan_scaling(const config::RunConfig& config,
                                     const setup::ModelShape& shape, const PlannedHosts& hosts,
                                     int gpus_of_a_host, const PlannedBatches& batches) {
  if (hosts.device.type == c10::DeviceType::CPU) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       "--scaling is for GPUs: name the GPU, such as --device h100-80g");
  }
  const WorkOfARank work =
      work_of(plan_run(config, shape, hosts, batches), shape, batches, config.train);
  std::vector<ScaledStep> steps;
  for (const PlannedHosts& more : larger_and_larger(hosts, gpus_of_a_host)) {
    config::RunConfig scaled = config;
    scaled.train.global_batch = work.samples * more.hosts * more.ranks;
    try {
      steps.push_back(scaled_step(plan_run(scaled, shape, more, batches), work));
    } catch (const sherd::Error& error) {  // fewer ranks than a shard group has
      if (error.code() != sherd::ExitCode::Usage) {
        throw;
      }
    }
  }
  return steps;
}

nlohmann::ordered_json json_of(const std::vector<ScaledStep>& steps) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ScaledStep& step : steps) {
    rows.push_back({{"ranks", step.ranks},
                    {"hosts", step.hosts},
                    {"step_seconds", step.time.step_seconds},
                    {"exposed_communication_seconds", step.time.exposed_communication_seconds},
                    {"tokens_per_second_per_rank", step.tokens_per_second},
                    {"mfu", step.mfu ? nlohmann::ordered_json(*step.mfu) : nullptr},
                    {"needed_bytes", step.needed_bytes},
                    {"fits", step.fits}});
  }
  return rows;
}

std::string to_text(const std::vector<ScaledStep>& steps) {
  std::string text = fmt::format(
      "on more GPUs, each with the same batch:\n"
      "{:>6} {:>6} {:>9} {:>15} {:>17} {:>8} {:>10}",
      "GPUs", "hosts", "step, s", "waiting", "tokens/s per GPU", "MFU", "memory");
  for (const ScaledStep& step : steps) {
    text += fmt::format("\n{:>6} {:>6} {:>9.4g} {:>13.1f} % {:>17} {:>8} {:>10}{}", step.ranks,
                        step.hosts, step.time.step_seconds,
                        100 * step.time.exposed_communication_seconds / step.time.step_seconds,
                        track::short_count(step.tokens_per_second),
                        step.mfu ? fmt::format("{:.1f} %", 100 * *step.mfu) : "-",
                        track::short_bytes(step.needed_bytes), step.fits ? "" : "  does not fit");
  }
  return text;
}

}  // namespace llm::plan
