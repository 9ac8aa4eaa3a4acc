#include "llm/check/check.h"

#include <optional>

#include <fmt/format.h>

#include "llm/check/data_checks.h"
#include "llm/check/model_checks.h"
#include "llm/check/scratch_folder.h"
#include "llm/plan/planned_batches.h"
#include "llm/plan/run_plan.h"
#include "llm/setup/agreement.h"
#include "llm/setup/load_model.h"
#include "llm/setup/options_of_config.h"
#include "llm/train/start.h"
#include "sherd/error.h"

namespace llm::check {

namespace {

// All ranks were given the same configuration, data and files.
CheckItem ranks_agree_config(const config::RunConfig& config, sherd::World& world) {
  CheckItem item{"ranks_agree_config", true, 0, 0, "ranks", ""};
  try {
    item.message = setup::agree_on_start(world, config::settings_in_common(config));
  } catch (const sherd::Error& error) {
    if (error.code() != sherd::ExitCode::RanksDisagree) {
      throw;
    }
    item.ok = false;
    item.measured = 1;
    item.message = error.what();
  }
  if (item.message.empty()) {
    item.message =
        fmt::format("the same settings on {} rank{}", world.size(), world.size() == 1 ? "" : "s");
  }
  return item;
}

// An item holds where it does on every rank: clocks, rates and memory are each host's own, and what
// comes next depends on it.
void agree_on(CheckItem& item, sherd::World& world) {
  double failed = item.ok ? 0 : 1;
  world.all_reduce({&failed, 1}, sherd::ReduceOp::Max);
  if (item.ok && failed > 0) {
    item.ok = false;
    item.message += "; it failed on another rank";
  }
}

}  // namespace

std::vector<CheckItem> check(const config::RunConfig& given, sherd::World world,
                             const CheckHooks& hooks) {
  std::vector<CheckItem> items;
  const auto found = [&](CheckItem item) {
    agree_on(item, world);
    if (world.rank() == 0) {
      hooks.found(item);
    }
    items.push_back(std::move(item));
  };
  const track::Say say = [&](const std::string& line) {
    if (world.rank() == 0) {
      hooks.say(line);
    }
  };
  found(ranks_agree_config(given, world));
  if (!items.back().ok) {
    return items;
  }
  config::RunConfig fresh = given;
  fresh.checkpoint.resume = "never";
  const train::RunInputs run =
      train::open_inputs(train::resolved(fresh, world), world, say, hooks.progress);
  found(data_order(run.data, run.config, run.shape, world));
  found(labels(run.data, run.config, run.tokenizer, world));
  found(padding(run.data, run.config, run.shape, world));
  train::require_room(run.config, run.model, run.data.length, world, say);
  const plan::PlannedBatches batches = plan::planned_batches(run.data, run.config, run.shape);
  const plan::RunPlan plan = track::with_progress(hooks.progress, "planning memory", [&] {
    return setup::read_on_all_ranks(world, [&] {
      return plan::plan_run(run.config, run.model, plan::hosts_of(world), batches);
    });
  });

  ScratchFolder folder(run.config.train.output, world, hooks.begin);
  auto model = track::with_progress(hooks.progress, "loading the model", [&] {
    return setup::load_model(run.config, run.model, world);
  });
  sherd::AdamW optimizer(model, setup::adamw_options(run.config.optim),
                         setup::adamw_groups(run.config.optim, *run.model.shapes),
                         setup::adamw_mode(run.config.precision));
  std::optional<sherd::GradScaler> scaler;
  if (setup::scales_loss(run.config.precision)) {
    scaler.emplace(model);
  }
  CheckedRun checked{run.config,    run.data,  run.shape,
                     model,         optimizer, scaler ? &*scaler : nullptr,
                     hooks.progress};
  found(track::with_progress(hooks.progress, "comparing the ranks' parameters",
                             [&] { return ranks_agree_parameters(checked); }));
  found(track::with_progress(hooks.progress, "comparing the ranks' losses",
                             [&] { return ranks_agree_loss(checked); }));
  bool is_finite = true;
  for (CheckItem& item : learns(checked, plan, folder.path() / "checkpoint")) {
    const bool is_about_numbers = item.name == "finite";
    found(std::move(item));
    is_finite = is_finite && (items.back().ok || !is_about_numbers);
  }
  folder.remove();
  if (is_finite) {
    found(track::with_progress(hooks.progress, "a step on the longest micro-batch",
                               [&] { return memory(checked, plan, batches.training_samples); }));
  }
  return items;
}

}  // namespace llm::check
