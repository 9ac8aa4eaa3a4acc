#include "llm/plan/plan_search.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "llm/config/words.h"
#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace llm::plan {

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

std::vector<config::Strategy> strategies(const PlannedHosts& hosts, bool keeps) {
  using config::Strategy;
  if (hosts.hosts * hosts.ranks == 1) {
    return {Strategy::FullShard};
  }
  std::vector<Strategy> found = {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard};
  if (keeps) {  // parameters between micro-batches; else as ShardGradOp
    found.push_back(Strategy::ShardOptimizer);
  }
  if (hosts.hosts > 1 && hosts.ranks > 1) {
    found.insert(found.end(), {Strategy::HybridShard, Strategy::HybridShardGradOp});
  }
  return found;
}

// What takes less memory than a setting, the cheapest first.
struct Saving {
  bool splits_masters = false;  // loses nothing
  bool checkpoints = false;
  bool narrow_moments = false;
};

std::vector<Saving> savings(const config::PrecisionSection& precision) {
  const bool may_split = precision.param_dtype == config::ParamDtype::BFloat16 &&
                         precision.master == config::MasterFormat::Float32;
  std::vector<Saving> found;
  for (const bool narrow_moments : {false, true}) {
    for (const bool checkpoints : {false, true}) {
      found.push_back({false, checkpoints, narrow_moments});
      if (may_split) {
        found.push_back({true, checkpoints, narrow_moments});
      }
    }
  }
  return found;
}

RunConfig with(const RunConfig& config, const Saving& saving) {
  RunConfig made = config;
  made.memory.activation_checkpointing = saving.checkpoints;
  made.precision.moments =
      saving.narrow_moments ? config::MomentsDtype::BFloat16 : config::MomentsDtype::Float32;
  if (saving.splits_masters) {
    made.precision.master = config::MasterFormat::Split;
  }
  return made;
}

// A plan is within a few percent of what a run takes.
bool fits_with_room(const RunPlan& plan) {
  constexpr std::int64_t kRoom = 20;
  const std::int64_t room = std::max(plan.reserve_bytes, plan.memory.peak_bytes / kRoom);
  return plan.available_bytes == 0 || plan.needed_bytes() + room <= plan.available_bytes;
}

FittingSetting setting_of(const RunConfig& config, RunPlan plan) {
  const bool narrow = config.precision.moments == config::MomentsDtype::BFloat16;
  return {
      {{"parallel.strategy", config::word_of(config.parallel.strategy, config::strategy_words())},
       {"train.micro_batch", fmt::format("{}", config.train.micro_batch.value_or(1))},
       {"memory.activation_checkpointing",
        config.memory.activation_checkpointing ? "true" : "false"},
       {"precision.master", config::word_of(config.precision.master, config::master_words())},
       {"precision.moments", narrow ? "bfloat16" : "float32"}},
      std::move(plan)};
}

// What a plan cannot tell apart.
bool as_fast(const FittingSetting& one, const FittingSetting& fastest) {
  constexpr double kWithin = 0.99;
  return one.plan.tokens_per_second >= kWithin * fastest.plan.tokens_per_second;
}

nlohmann::ordered_json set_json(const FittingSetting& one) {
  nlohmann::ordered_json set;
  for (const auto& [key, value] : one.set) {
    set[key] = value;
  }
  return set;
}

// A cell each for speed, memory and each of the set; what they are above them.
std::vector<std::vector<std::string>> cells_of(const std::vector<FittingSetting>& found) {
  std::vector<std::vector<std::string>> rows = {{"tokens/s", "memory"}};
  for (const auto& [key, value] : found.front().set) {
    rows.front().push_back(key.substr(key.find('.') + 1));
  }
  const FittingSetting* fastest = nullptr;
  for (const FittingSetting& one : found) {
    const bool is_as_fast = fastest != nullptr && as_fast(one, *fastest);
    fastest = is_as_fast ? fastest : &one;
    rows.push_back({is_as_fast ? "as fast" : track::short_count(one.plan.tokens_per_second),
                    track::short_bytes(one.plan.memory.peak_bytes)});
    for (const auto& [key, value] : one.set) {
      rows.back().push_back(value);
    }
  }
  return rows;
}

std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    text += "\n";
    for (std::size_t column = 0; column < row.size(); ++column) {
      text += fmt::format("  {:>{}}", row[column], widths[column]);
    }
  }
  return text;
}

std::string recommended_lines(const std::vector<FittingSetting>& found) {
  std::string text = "\nrecommended: least memory among settings within 1 % of the fastest";
  const auto& set = recommended(found).set;
  for (std::size_t at = 0; at < set.size(); ++at) {
    text += fmt::format("{}--{} {}{}", at % 2 == 0 ? "\n  " : " ", set[at].first, set[at].second,
                        at % 2 == 1 && at + 1 < set.size() ? " \\" : "");
  }
  return text;
}

std::optional<FittingSetting> first_that_fits(const RunConfig& config,
                                              const setup::ModelShape& shape,
                                              const PlannedHosts& hosts,
                                              const PlannedBatches& batches) {
  for (const Saving& saving : savings(config.precision)) {
    const RunConfig tried = with(config, saving);
    RunPlan plan = plan_run(tried, shape, hosts, batches);
    if (fits_with_room(plan)) {
      return setting_of(tried, std::move(plan));
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<FittingSetting> search_plans(const RunConfig& config, const setup::ModelShape& shape,
                                         const PlannedHosts& hosts, const BatchesOf& batches_of) {
  std::vector<FittingSetting> found;
  for (const std::int64_t micro_batch : micro_batches(config.train, hosts)) {
    RunConfig tried = config;
    tried.train.micro_batch = micro_batch;
    const PlannedBatches batches = batches_of(tried);
    const bool keeps = micro_batch * hosts.hosts * hosts.ranks < config.train.global_batch &&
                       !config.device.cuda_graphs;
    for (const config::Strategy strategy : strategies(hosts, keeps)) {
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

std::optional<std::int64_t> fastest_micro_batch(const RunConfig& config,
                                                const setup::ModelShape& shape,
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
                 : "train.micro_batch: 1, because none is planned to fit";
}

const FittingSetting& recommended(const std::vector<FittingSetting>& found) {
  const auto end = std::find_if(found.begin(), found.end(), [&](const FittingSetting& one) {
    return !as_fast(one, found.front());
  });
  return *std::min_element(found.begin(), end, [](const auto& a, const auto& b) {
    return a.plan.memory.peak_bytes < b.plan.memory.peak_bytes;
  });
}

nlohmann::ordered_json json_of(const RunPlan& plan, const std::vector<FittingSetting>& found) {
  nlohmann::ordered_json line = json_of(plan);
  line["search"] = nlohmann::ordered_json::array();
  for (const FittingSetting& one : found) {
    line["search"].push_back({{"set", set_json(one)},
                              {"peak_bytes", one.plan.memory.peak_bytes},
                              {"tokens_per_second", one.plan.tokens_per_second}});
  }
  if (!found.empty()) {
    line["recommended"] = set_json(recommended(found));
  }
  return line;
}

std::string to_text(const std::vector<FittingSetting>& found) {
  if (found.empty()) {
    return "no setting of strategy, micro-batch, activation checkpointing, masters and moments "
           "fits; memory.offload reduces what a rank holds";
  }
  return "settings that fit, fastest first:" + table_of(cells_of(found)) + recommended_lines(found);
}

}  // namespace llm::plan
