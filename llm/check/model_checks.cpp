#include "llm/check/model_checks.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "files/sha256.h"
#include "llm/inputs/sampler.h"
#include "llm/model/dropout_keys.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/objective.h"
#include "llm/setup/peak_memory.h"
#include "llm/text/printable.h"
#include "llm/track/step_record.h"
#include "llm/train/train_step.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/state_dict.h"

namespace llm::check {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 4;
// Below this share of what is planned with measured rates a run is slower than it should be.
constexpr double kLeastShareOfPlan = 0.5;

// Of every unit; none is resharded.
std::vector<std::string> unit_names(sherd::ShardedModule& model) {
  std::vector<std::string> names;
  model.reshard([&](const std::string& unit) {
    names.push_back(unit);
    return false;
  });
  return names;
}

constexpr const char* kRoot = "root";

bool is_inside(const std::string& parameter, const std::string& unit,
               const std::vector<std::string>& units) {
  if (unit != kRoot) {
    return parameter.starts_with(unit + ".");
  }
  return std::none_of(units.begin(), units.end(), [&](const std::string& other) {
    return other != kRoot && is_inside(parameter, other, {});
  });
}

// Of a unit's parameters, which are whole now.
std::string digest_of(model::CausalLmImpl& module, const std::string& unit,
                      const std::vector<std::string>& units) {
  sherd::files::Sha256 digest;
  for (const auto& item : module.named_parameters()) {
    if (is_inside(item.key(), unit, units)) {
      const at::Tensor whole = item.value().contiguous();
      digest.add(item.key().data(), item.key().size());
      digest.add(whole.const_data_ptr(), whole.nbytes());
    }
  }
  return digest.finish();
}

// The ranks whose text is another than rank 0's.
std::vector<int> ranks_that_differ(sherd::World& world, const std::string& text) {
  const std::vector<std::string> all = world.all_gather(text);
  std::vector<int> ranks;
  for (int rank = 1; rank < world.size(); ++rank) {
    if (all[static_cast<size_t>(rank)] != all[0]) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<std::int64_t> first_rows(const CheckedRun& run) {
  inputs::Sampler sampler(run.data.length.rows, run.config.train.global_batch,
                          static_cast<std::uint64_t>(run.config.train.seed));
  return sampler.batch(0);
}

std::vector<inputs::Batch> first_batches(const CheckedRun& run, int rank) {
  const std::vector<std::int64_t> rows = first_rows(run);
  std::vector<inputs::Batch> batches;
  const std::int64_t count = run.shape.micro_batches(static_cast<std::int64_t>(rows.size()));
  for (std::int64_t micro = 0; micro < count; ++micro) {
    batches.push_back(inputs::collate(
        run.data.training, run.data.rows.samples_of(run.shape.samples_of(rows, micro, rank))));
  }
  return batches;
}

double probe_loss(CheckedRun& run) {
  const at::NoGradGuard no_grad;
  const inputs::Batch batch = first_batches(run, 0).front();
  return setup::loss_sum(run.model, setup::to_tensors(batch)).item<double>() /
         static_cast<double>(std::max<std::int64_t>(1, batch.supervised_tokens));
}

// Of pairs, with what the model says of them now, as at the first step of a run.
void set_reference(CheckedRun& run, std::vector<inputs::Batch>& batches) {
  const bool needs_reference =
      run.config.train.objective == config::Objective::Dpo && !setup::reference_is_base(run.config);
  if (!needs_reference) {
    return;
  }
  for (inputs::Batch& batch : batches) {
    const at::Tensor logps_N = setup::logps(run.model, setup::to_tensors(batch)).cpu();
    const auto* const values = logps_N.const_data_ptr<double>();
    batch.reference_logps.emplace(values, values + logps_N.numel());
  }
}

train::StepOutcome step(CheckedRun& run, const std::vector<inputs::Batch>& batches,
                        std::int64_t number) {
  const auto objective = setup::objective_of(run.config);
  train::StepPlan plan{number, run.config.optim.clip_grad_norm, false};
  plan.objective = objective.get();
  if (model::has_dropout(*run.model.module())) {
    plan.dropout_seed = static_cast<std::uint64_t>(run.config.train.seed);
  }
  return train::train_step(run.model, run.optimizer, run.scaler, batches, plan);
}

CheckItem round_trip_item(double saved, double loaded) {
  const bool same = std::bit_cast<std::uint64_t>(saved) == std::bit_cast<std::uint64_t>(loaded);
  return {"checkpoint_round_trip",
          same,
          std::abs(saved - loaded),
          0,
          "nats",
          fmt::format("loss {:.6f} when saved, {:.6f} when loaded again, {}", saved, loaded,
                      same ? "bit for bit" : "other bits")};
}

CheckItem throughput_item(const plan::RunPlan& plan, double tokens_per_second) {
  // Of shorter steps much goes into what no rate tells: starting operators, meeting other ranks.
  constexpr double kLeastStep_seconds = 0.2;
  const bool is_bound =
      plan.rates.starts_with("measured") && plan.time.step_seconds >= kLeastStep_seconds;
  const double least = is_bound ? kLeastShareOfPlan * plan.tokens_per_second : 0;
  return {"throughput",
          tokens_per_second >= least,
          tokens_per_second,
          least,
          "tokens/s",
          fmt::format("{} tokens/s on the first batch, {} planned on average ({})",
                      track::short_count(tokens_per_second),
                      track::short_count(plan.tokens_per_second), plan.rates)};
}

// What a plan may be wrong by: a twentieth (benchmarks/plan), of a small run what a heap rounds to.
std::int64_t most_as_planned(const plan::RunPlan& plan) {
  constexpr std::int64_t kOfASmallRun_bytes = 64LL << 20;
  return plan.needed_bytes() + std::max(plan.memory.peak_bytes / 20, kOfASmallRun_bytes);
}

CheckItem memory_item(const plan::RunPlan& plan, std::int64_t measured_bytes) {
  const std::int64_t planned = most_as_planned(plan);
  const bool is_known = plan.available_bytes != 0;
  const std::int64_t limit = is_known ? std::min(planned, plan.available_bytes) : planned;
  std::string message = fmt::format(
      "the longest micro-batch takes {} of {} per rank, {:.0f} % of the planned {}",
      track::short_bytes(measured_bytes),
      is_known ? track::short_bytes(plan.available_bytes) : "an unknown amount",
      100 * static_cast<double>(measured_bytes) / static_cast<double>(plan.needed_bytes()),
      track::short_bytes(plan.needed_bytes()));
  if (measured_bytes > planned) {
    message += ": the plan is off by more than it may be, so do not rely on `fits` of `sherd plan`";
  }
  return {"memory",
          measured_bytes <= limit,
          static_cast<double>(measured_bytes),
          static_cast<double>(limit),
          "bytes",
          message};
}

}  // namespace

CheckItem ranks_agree_parameters(CheckedRun& run) {
  sherd::World& world = run.model.world();
  std::string differing;
  double units = 0;
  double wrong = 0;
  const std::vector<std::string> names = unit_names(run.model);
  for (const std::string& unit : names) {
    std::string digest;
    sherd::with_full_parameters(run.model, unit,
                                [&] { digest = digest_of(*run.model.module(), unit, names); });
    ++units;
    if (const std::vector<int> ranks = ranks_that_differ(world, digest); !ranks.empty()) {
      ++wrong;
      differing += fmt::format("; unit '{}' differs on rank {}", unit, fmt::join(ranks, ", "));
    }
  }
  return {"ranks_agree_parameters",
          wrong == 0,
          wrong,
          0,
          "units",
          fmt::format("{} gathered on {}, {:.0f} differ{}",
                      text::counted(static_cast<std::int64_t>(units), "unit"),
                      text::counted(world.size(), "rank"), wrong, differing)};
}

CheckItem ranks_agree_loss(CheckedRun& run) {
  sherd::World& world = run.model.world();
  const double loss = probe_loss(run);
  const std::vector<int> ranks =
      ranks_that_differ(world, std::to_string(std::bit_cast<std::uint64_t>(loss)));
  return {"ranks_agree_loss",
          ranks.empty(),
          static_cast<double>(ranks.size()),
          0,
          "ranks",
          ranks.empty()
              ? fmt::format("loss {:.6f} on {}{}, bit for bit", loss,
                            world.size() == 1 ? "" : "all ", text::counted(world.size(), "rank"))
              : fmt::format("the loss of one batch differs from rank 0's on rank {}",
                            fmt::join(ranks, ", "))};
}

std::vector<CheckItem> learns(CheckedRun& run, const plan::RunPlan& plan,
                              const std::filesystem::path& folder) try {
  const track::Working working(run.progress, "training on the first batch");
  const auto count = track::counted_in("steps", run.progress);
  run.optimizer.set_lr(run.config.optim.lr);
  std::vector<inputs::Batch> batches = first_batches(run, run.model.world().rank());
  set_reference(run, batches);
  std::vector<train::StepOutcome> outcomes;
  double saved_loss = 0;
  double fastest = 0;
  for (int number = 1; number <= kSteps; ++number) {
    const Clock::time_point start = Clock::now();
    outcomes.push_back(step(run, batches, number));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    count(number, kSteps);
    if (number == 1) {
      const track::Working saving(run.progress, "saving a checkpoint");
      sherd::save_checkpoint(run.model, run.optimizer, folder.string(), "");
      saved_loss = probe_loss(run);
    } else {
      fastest = std::max(fastest, static_cast<double>(outcomes.back().tokens) / seconds);
    }
  }
  track::with_progress(run.progress, "loading the checkpoint",
                       [&] { sherd::load_checkpoint(run.model, run.optimizer, folder.string()); });
  const double loaded_loss = probe_loss(run);
  const double first = outcomes.front().loss;
  const double last = outcomes.back().loss;
  const double norm = outcomes.back().grad_norm;
  const auto overflows = std::count_if(outcomes.begin(), outcomes.end(),
                                       [](const auto& outcome) { return outcome.overflowed; });
  return {{"finite", overflows < kSteps, static_cast<double>(overflows), kSteps - 1, "steps",
           fmt::format("losses of {} steps are finite, gradients of {}; the last norm is {:.3g}",
                       kSteps, kSteps - overflows, norm)},
          {"loss_falls", last < first, last, first, "nats",
           fmt::format("loss {:.4f} -> {:.4f} in {} steps on the first batch at lr {:g}", first,
                       last, kSteps, run.config.optim.lr)},
          round_trip_item(saved_loss, loaded_loss),
          throughput_item(plan, fastest)};
} catch (const sherd::Error& error) {  // the same on all ranks
  if (error.code() != sherd::ExitCode::NonFinite) {
    throw;
  }
  return {{"finite", false, 1, 0, "steps", error.what()}};
}

CheckItem memory(CheckedRun& run, const plan::RunPlan& plan,
                 const std::vector<std::int64_t>& longest_samples) {
  sherd::World& world = run.model.world();
  run.optimizer.set_lr(0);
  const auto count = run.shape.micro_batches(run.config.train.global_batch);
  std::vector<inputs::Batch> batches(static_cast<size_t>(count),
                                     inputs::collate(run.data.training, longest_samples));
  set_reference(run, batches);
  static_cast<void>(step(run, batches, kSteps + 1));
  // The allocator keeps what it has taken: this is the step's peak.
  double largest = static_cast<double>(setup::held_bytes_of(world));
  world.all_reduce({&largest, 1}, sherd::ReduceOp::Max);
  return memory_item(plan, static_cast<std::int64_t>(largest));
}

}  // namespace llm::check
