#include "llm/train/plan_search.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "llm/config/words.h"
#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

using config::RunConfig;

constexpr std::int64_t kLargestMicroBatch = 64;

// Smallest first.
std::vector<std::int64_t> micro_batches(const config::TrainSection& train,
                                        const PlannedHosts& hosts) {
  const std::int64_t of_a_rank = train.global_batch / (hosts.hosts * hosts.ranks);
  std::vector<std::int64_t> found;
  for (std::int64_t samples = 1; samples <= std::min(of_a_rank, kLargestMicroBatch); ++samples) {
    if (of_a_rank % samples == 0) {
      found.push_back(samples);
    }
  }
  return found;
}

std::vector<config::Strategy> strategies(const PlannedHosts& hosts) {
  using config::Strategy;
  if (hosts.hosts * hosts.ranks == 1) {
    return {Strategy::FullShard};
  }
  std::vector<Strategy> found = {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard};
  if (hosts.hosts > 1 && hosts.ranks > 1) {
    found.insert(found.end(), {Strategy::HybridShard, Strategy::HybridShardGradOp});
  }
  return found;
}

// What takes less memory than a setting, the cheapest first.
struct Saving {
  bool checkpoints = false;
  bool narrow_moments = false;
};
constexpr Saving kSavings[] = {{false, false}, {true, false}, {false, true}, {true, true}};

RunConfig with(const RunConfig& config, const Saving& saving) {
  RunConfig made = config;
  made.memory.activation_checkpointing = saving.checkpoints;
  made.precision.moments_dtype =
      saving.narrow_moments ? config::MomentsDtype::BFloat16 : config::MomentsDtype::Float32;
  return made;
}

// A plan is within a few percent of what a run takes.
bool fits_with_room(const RunPlan& plan) {
  constexpr std::int64_t kRoom = 20;
  return plan.available_bytes == 0 ||
         plan.constant_bytes + plan.memory.peak_bytes + plan.memory.peak_bytes / kRoom <=
             plan.available_bytes;
}

FittingSetting setting_of(const RunConfig& config, RunPlan plan) {
  const bool narrow = config.precision.moments_dtype == config::MomentsDtype::BFloat16;
  return {
      {{"parallel.strategy", config::word_of(config.parallel.strategy, config::strategy_words())},
       {"train.micro_batch", fmt::format("{}", config.train.micro_batch.value_or(1))},
       {"memory.activation_checkpointing",
        config.memory.activation_checkpointing ? "true" : "false"},
       {"precision.moments_dtype", narrow ? "bfloat16" : "float32"}},
      std::move(plan)};
}

std::optional<FittingSetting> first_that_fits(const RunConfig& config, const ModelShape& shape,
                                              const PlannedHosts& hosts,
                                              const PlannedBatches& batches) {
  for (const Saving& saving : kSavings) {
    const RunConfig tried = with(config, saving);
    RunPlan plan = plan_run(tried, shape, hosts, batches);
    if (fits_with_room(plan)) {
      return setting_of(tried, std::move(plan));
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<FittingSetting> search_plans(const RunConfig& config, const ModelShape& shape,
                                         const PlannedHosts& hosts, const BatchesOf& batches_of) {
  std::vector<FittingSetting> found;
  for (const std::int64_t micro_batch : micro_batches(config.train, hosts)) {
    RunConfig tried = config;
    tried.train.micro_batch = micro_batch;
    const PlannedBatches batches = batches_of(tried);
    for (const config::Strategy strategy : strategies(hosts)) {
      tried.parallel.strategy = strategy;
      try {
        if (auto setting = first_that_fits(tried, shape, hosts, batches)) {
          found.push_back(std::move(*setting));
        }
      } catch (const sherd::Error& error) {  // other settings do not go with this strategy
        if (error.code() != sherd::ExitCode::Usage) {
          throw;
        }
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.plan.tokens_per_second > b.plan.tokens_per_second;
  });
  return found;
}

std::optional<std::int64_t> fastest_micro_batch(const RunConfig& config, const ModelShape& shape,
                                                const PlannedHosts& hosts,
                                                const BatchesOf& batches_of) {
  std::optional<std::int64_t> fastest;
  double most = 0;
  for (const std::int64_t micro_batch : micro_batches(config.train, hosts)) {
    RunConfig tried = config;
    tried.train.micro_batch = micro_batch;
    const RunPlan plan = plan_run(tried, shape, hosts, batches_of(tried));
    if (!fits_with_room(plan)) {
      break;
    }
    if (!fastest || plan.tokens_per_second > most) {
      most = plan.tokens_per_second;
      fastest = micro_batch;
    }
  }
  return fastest;
}

std::string micro_batch_line(const std::optional<std::int64_t>& fastest) {
  return fastest ? fmt::format("train.micro_batch: {}, the fastest that fits", *fastest)
                 : "train.micro_batch: 1, since none is planned to fit";
}

std::string to_json(const RunPlan& plan, const std::vector<FittingSetting>& found) {
  nlohmann::ordered_json line = json_of(plan);
  line["search"] = nlohmann::ordered_json::array();
  for (const FittingSetting& one : found) {
    nlohmann::ordered_json set;
    for (const auto& [key, value] : one.set) {
      set[key] = value;
    }
    line["search"].push_back({{"set", std::move(set)},
                              {"peak_bytes", one.plan.memory.peak_bytes},
                              {"tokens_per_second", one.plan.tokens_per_second}});
  }
  return line.dump();
}

std::string to_text(const std::vector<FittingSetting>& found) {
  if (found.empty()) {
    return "no setting of strategy, micro-batch, activation checkpointing and moments fits";
  }
  std::string text = "what fits, the fastest first:";
  for (const FittingSetting& one : found) {
    text += fmt::format("\n  {:>7} tokens/s {:>9} ", track::short_count(one.plan.tokens_per_second),
                        track::short_bytes(one.plan.memory.peak_bytes));
    for (const auto& [key, value] : one.set) {
      text += fmt::format(" --{} {}", key, value);
    }
  }
  return text;
}

}  // namespace llm::train
