#include "llm/train/run_plan.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "llm/config/words.h"
#include "llm/data/sampler.h"
#include "llm/track/step_record.h"
#include "llm/train/auto_dtype.h"
#include "llm/train/free_space.h"
#include "llm/train/options_of_config.h"
#include "llm/train/peak_memory.h"
#include "llm/train/tiny_step.h"

namespace llm::train {

namespace {

std::int64_t tokens_of(const data::Samples& samples, const std::vector<std::int64_t>& indices) {
  std::int64_t tokens = 0;
  for (const std::int64_t index : indices) {
    tokens += static_cast<std::int64_t>(samples[static_cast<size_t>(index)].ids.size());
  }
  return tokens;
}

plan::MicroBatch batch_of(const data::Samples& samples, const std::vector<std::int64_t>& indices) {
  plan::MicroBatch batch;
  for (const std::int64_t index : indices) {
    const data::Sample sample = samples[static_cast<size_t>(index)];
    batch.sample_tokens.push_back(static_cast<std::int64_t>(sample.ids.size()));
    batch.supervised_tokens.push_back(sample.supervised_tokens());
  }
  return batch;
}

// The configuration with what "auto" becomes on a device.
config::RunConfig on_device(config::RunConfig config, const plan::Device& device) {
  config::ParamDtype& dtype = config.precision.param_dtype;
  if (device.type == c10::DeviceType::CPU) {
    dtype = chosen_dtype(dtype);
  } else if (dtype == config::ParamDtype::Auto) {
    dtype = device.auto_dtype == c10::kHalf ? config::ParamDtype::Float16
                                            : config::ParamDtype::BFloat16;
  }
  return config;
}

std::int64_t available_to_a_rank(const PlannedHosts& hosts) {
  if (hosts.device.type != c10::DeviceType::CPU) {
    return hosts.memory_bytes.value_or(hosts.device.memory_bytes);
  }
  return hosts.memory_bytes.value_or(available_memory_bytes(hosts.ranks)) / hosts.ranks;
}

// "attention 1.2 GiB, linear 812 MiB": the largest of a phase.
std::string largest_items(const plan::PhasePlan& phase) {
  constexpr size_t kNamed = 4;
  constexpr std::int64_t kLeastShare = 50;  // 2 %
  std::vector<std::pair<std::string, std::int64_t>> items(phase.items.begin(), phase.items.end());
  std::sort(items.begin(), items.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  items.resize(std::min(items.size(), kNamed));
  std::vector<std::string> named;
  for (const auto& [name, bytes] : items) {
    if (kLeastShare * bytes >= phase.total_bytes) {
      named.push_back(fmt::format("{} {}", name, track::short_bytes(bytes)));
    }
  }
  return fmt::format("{}", fmt::join(named, ", "));
}

std::string ranks_text(const PlannedHosts& hosts) {
  const int ranks = hosts.hosts * hosts.ranks;
  return fmt::format("{} rank{} on {} host{}", ranks, ranks == 1 ? "" : "s", hosts.hosts,
                     hosts.hosts == 1 ? "" : "s");
}

}  // namespace

LongestBatch longest_batch(const RunData& data, const config::TrainSection& train,
                           const data::BatchShape& shape) {
  data::Sampler sampler(data.length.rows, train.global_batch,
                        static_cast<std::uint64_t>(train.seed));
  std::vector<std::int64_t> longest;
  std::int64_t most = -1;
  for (std::int64_t step = 0; step < data.length.total_steps; ++step) {
    const std::vector<std::int64_t> rows = sampler.batch(step);
    const std::int64_t count = shape.micro_batches(static_cast<std::int64_t>(rows.size()));
    for (std::int64_t place = 0; place < count * shape.world; ++place) {
      const auto samples =
          data.rows.samples_of(shape.samples_of(rows, place / shape.world, place % shape.world));
      const std::int64_t tokens = tokens_of(data.training, samples);
      if (tokens > most) {
        most = tokens;
        longest = samples;
      }
    }
  }
  return {batch_of(data.training, longest),
          fmt::format("the longest micro-batch of the data: {} sample{}, {} tokens", longest.size(),
                      longest.size() == 1 ? "" : "s", most)};
}

LongestBatch longest_batch(const config::RunConfig& config, std::int64_t context) {
  const std::int64_t length = sample_length(config.data.max_length.value_or(0), context);
  const auto samples = static_cast<size_t>(config.train.micro_batch);
  const std::vector<std::int64_t> tokens(samples, length);
  return {{tokens, tokens},
          fmt::format("without the data: {} sample{} of {} tokens, all supervised", samples,
                      samples == 1 ? "" : "s", length)};
}

RunPlan plan_run(const config::RunConfig& given, const ModelShape& shape, const PlannedHosts& hosts,
                 const LongestBatch& longest) {
  const config::RunConfig config = on_device(given, hosts.device);
  const int ranks = hosts.hosts * hosts.ranks;
  const data::BatchShape batches = batch_shape(config.train, ranks);
  const auto micro_batches = static_cast<size_t>(batches.micro_batches(batches.global_batch));
  const bool on_cpu = hosts.device.type == c10::DeviceType::CPU;
  return {.model = config.model.path,
          .hosts = hosts,
          .strategy = config::word_of(config.parallel.strategy, config::strategy_words()),
          .param_dtype = config::word_of(config.precision.param_dtype, config::param_dtype_words()),
          .batch = longest.source,
          .parameters = shape.parameters,
          .memory = plan::plan_memory(
              {.model = shape.config,
               .ranks = {.size = ranks, .local_size = hosts.ranks, .device = hosts.device.type},
               .sharding = shard_options(config),
               .shard_size = config.parallel.shard_size,
               .adamw = adamw_mode(config.precision),
               .loss_chunk_tokens = config.memory.loss_chunk_tokens,
               .micro_batches = std::vector<plan::MicroBatch>(micro_batches, longest.batch)}),
          .constant_bytes = on_cpu ? constant_bytes(shape.config, shard_options(config))
                                   : hosts.device.context_bytes,
          .available_bytes = available_to_a_rank(hosts),
          .checkpoint_bytes = checkpoint_bytes(shape.parameters, config.precision)};
}

std::string to_json(const RunPlan& plan) {
  const nlohmann::ordered_json line = {{"fits", plan.fits()},
                                       {"device", plan.hosts.device.name},
                                       {"ranks", plan.hosts.hosts * plan.hosts.ranks},
                                       {"hosts", plan.hosts.hosts},
                                       {"model", plan.model},
                                       {"parameters", plan.parameters},
                                       {"strategy", plan.strategy},
                                       {"param_dtype", plan.param_dtype},
                                       {"batch", plan.batch},
                                       {"constant_bytes", plan.constant_bytes},
                                       {"available_bytes", plan.available_bytes},
                                       {"peak_bytes", plan.memory.peak_bytes},
                                       {"peak_phase", plan.memory.peak_phase},
                                       {"peak_item", plan.memory.peak_item},
                                       {"phases", plan::phases_json(plan.memory)},
                                       {"checkpoint_bytes", plan.checkpoint_bytes}};
  return line.dump();
}

std::string to_text(const RunPlan& plan) {
  using track::short_bytes;
  std::string text =
      fmt::format("plan: {}, {} parameters, {}, {} in {}, device {}\nbatch: {}\n", plan.model,
                  track::short_count(static_cast<double>(plan.parameters)), ranks_text(plan.hosts),
                  plan.strategy, plan.param_dtype, plan.hosts.device.name, plan.batch);
  if (!plan.hosts.device.remark.empty()) {
    text += plan.hosts.device.remark + "\n";
  }
  text += "a rank holds at most:\n";
  for (const plan::PhasePlan& phase : plan.memory.phases) {
    text += fmt::format("  {:<10} {:>9}   {}\n", phase.name, short_bytes(phase.total_bytes),
                        largest_items(phase));
  }
  text += fmt::format("  before it  {:>9}   {}\n", short_bytes(plan.constant_bytes),
                      plan.hosts.device.type == c10::DeviceType::CPU
                          ? "the program itself"
                          : "the driver and its libraries (assumed)");
  const std::int64_t needed = plan.constant_bytes + plan.memory.peak_bytes;
  text += plan.available_bytes == 0
              ? fmt::format("needs {} a rank; what there is, is not known\n", short_bytes(needed))
              : fmt::format("{}: {} of {} a rank, most of it in {} ({})\n",
                            plan.fits() ? "fits" : "does not fit", short_bytes(needed),
                            short_bytes(plan.available_bytes), plan.memory.peak_phase,
                            plan.memory.peak_item);
  return text + fmt::format("a checkpoint takes {}", short_bytes(plan.checkpoint_bytes));
}

}  // namespace llm::train
