#include "llm/train/out_of_memory.h"

#include <string>

#include <c10/util/Exception.h>
#include <fmt/core.h>

#include "llm/inputs/data_options.h"
#include "llm/plan/plan_search.h"
#include "llm/plan/planned_batches.h"
#include "llm/plan/run_plan.h"
#include "llm/setup/device.h"
#include "llm/setup/peak_memory.h"
#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

constexpr std::size_t kSettings = 3;

std::string first_line_of(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string flags_of(const plan::FittingSetting& setting) {
  std::string flags;
  for (const auto& [key, value] : setting.set) {
    flags += fmt::format(" --{} {}", key, value);
  }
  return flags;
}

std::string settings_text(const RunInputs& run, const plan::PlannedHosts& hosts,
                          const plan::RunPlan& plan) {
  const auto batches_of = [&](const config::RunConfig& tried) {
    return plan::planned_batches(run.data, tried,
                                 inputs::batch_shape(tried.train, hosts.hosts * hosts.ranks));
  };
  std::string text;
  std::size_t told = 0;
  for (const plan::FittingSetting& setting :
       plan::search_plans(run.config, run.model, hosts, batches_of)) {
    if (setting.plan.memory.peak_bytes < plan.memory.peak_bytes && told < kSettings) {
      ++told;
      text += fmt::format("\n {}: planned {}", flags_of(setting),
                          track::short_bytes(setting.plan.memory.peak_bytes));
    }
  }
  return told == 0
             ? ". No other setting is planned to take less: use more ranks, or a smaller model."
             : ". These settings are planned to take less, fastest first:" + text;
}

std::string advice(const RunInputs& run, const sherd::World& world, const std::string& why) {
  const plan::PlannedHosts hosts = plan::hosts_of(world);
  const plan::RunPlan plan = plan::plan_run(run.config, run.model, hosts,
                                            plan::planned_batches(run.data, run.config, run.shape));
  return fmt::format(
      "out of memory on {}, rank {}: {}. A rank was planned to take {}; LibTorch held "
      "{} there{}",
      setup::path_of(world), world.rank(), first_line_of(why),
      track::short_bytes(plan.memory.peak_bytes), track::short_bytes(setup::held_bytes_of(world)),
      settings_text(run, hosts, plan));
}

[[noreturn]] void throw_advice(const RunInputs& run, const sherd::World& world,
                               const std::string& why) {
  throw sherd::Error(sherd::ExitCode::OutOfMemory, advice(run, world, why));
}

}  // namespace

void throw_with_memory_advice(const RunInputs& run, const sherd::World& world) {
  if (world.device().is_cpu()) {
    throw;
  }
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    throw_advice(run, world, error.what_without_backtrace());
  } catch (const sherd::Error& error) {
    if (error.code() == sherd::ExitCode::OutOfMemory) {
      throw_advice(run, world, error.what());
    }
    throw;
  }
}

}  // namespace llm::train
