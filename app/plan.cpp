// sherd plan RECIPE [-n N] [--nodes N] [--device NAME] [--memory GB] [--link GB/S] [--search]
// [--scaling] [--json] …

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/hub_names.h"
#include "app/live_line.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/recipe.h"
#include "app/verbs.h"
#include "launch/spinning.h"
#include "llm/adapters/adapt.h"
#include "llm/inputs/data_options.h"
#include "llm/plan/device.h"
#include "llm/plan/plan_beside_estimate.h"
#include "llm/plan/plan_scaling.h"
#include "llm/plan/plan_search.h"
#include "llm/plan/run_plan.h"
#include "llm/setup/load_data.h"
#include "llm/track/progress.h"
#include "llm/train/graphed_micro_batches.h"
#include "sherd/error.h"

namespace app {

namespace {

constexpr int kGpusOfAHost = 8;  // without -n

struct PlanFlags {
  int ranks = 1;
  int nodes = 1;
  std::string device = "cpu";
  std::optional<double> memory_gb;
  std::optional<double> link_gb_per_second;
  bool search = false;
  bool json = false;
  bool scaling = false;
};

// None if the data is missing: a recipe can be planned before its data is fetched.
std::optional<llm::inputs::RunData> data_of(const llm::config::RunConfig& config,
                                            const llm::setup::ModelShape& shape,
                                            const llm::track::Say& say,
                                            llm::track::Progress& progress) {
  try {
    sherd::World world = sherd::World::alone();
    const auto tokenizer = llm::setup::load_tokenizer(config.model.path);
    return llm::setup::load_run_data(config, tokenizer, shape, world, say, &progress);
  } catch (const sherd::Error& error) {
    if (error.code() != sherd::ExitCode::InputMissing) {
      throw;
    }
    say(fmt::format("planned without the data: {}", error.what()));
    return std::nullopt;
  }
}

llm::plan::PlannedHosts hosts_of(const PlanFlags& flags, const llm::config::RunConfig& config) {
  constexpr double kBytesOfGb = 1e9;
  llm::plan::PlannedHosts hosts{llm::plan::device_of_name(flags.device), flags.nodes, flags.ranks};
  if (flags.memory_gb) {
    hosts.memory_bytes = static_cast<std::int64_t>(*flags.memory_gb * kBytesOfGb);
  }
  hosts.link_gb_per_second = flags.link_gb_per_second;
  hosts.threads =
      config.device.threads.value_or(std::max(1, sherd::launch::usable_cores() / flags.ranks));
  return hosts;
}

using Found = std::optional<std::vector<llm::plan::FittingSetting>>;

// The printed text.
struct Plans {
  llm::plan::RunPlan run;
  Found found = std::nullopt;
  std::optional<std::vector<llm::plan::ScaledStep>> scaled = std::nullopt;
  std::optional<llm::plan::PlanBesideEstimate> beside = std::nullopt;
};

std::string json_text(const Plans& plans) {
  auto line =
      plans.found ? llm::plan::json_of(plans.run, *plans.found) : llm::plan::json_of(plans.run);
  if (plans.scaled) {
    line["scaling"] = llm::plan::json_of(*plans.scaled);
  }
  if (plans.beside) {
    line["usual_estimate"] = llm::plan::json_of(*plans.beside);
  }
  return line.dump();
}

std::string people_text(const Plans& plans) {
  const auto text_of = [](const auto& part) {
    return part ? "\n" + llm::plan::to_text(*part) : std::string();
  };
  return llm::plan::to_text(plans.run) + text_of(plans.found) + text_of(plans.scaled) +
         text_of(plans.beside);
}

int plan(const PlanFlags& flags, const std::vector<std::string>& words) {
  using llm::config::RunConfig;
  llm::track::Progress progress(output_for_people(/*json_on_stdout=*/true));
  const llm::track::Working planning(&progress, "planning");
  const auto say_aside = [&](const std::string& line) { progress.say(line); };
  const auto print = [&](const std::string& text) { progress.aside([&] { print_result(text); }); };
  RunConfig config = llm::setup::with_adapter_folder(load_recipe_to_read(words, say_aside));
  HubNames({.may_fetch = false,
            .data_may_be_missing = true,
            .json_on_stdout = true,
            .progress = &progress})
      .resolve(config);
  const llm::plan::PlannedHosts hosts = hosts_of(flags, config);
  const bool on_cpu = hosts.device.type == c10::DeviceType::CPU;
  if (on_cpu && config.device.kind == llm::config::DeviceKind::Cuda) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        "device.kind is \"cuda\": name the GPU to plan for, such as --device h100-80g");
  }
  llm::train::check_graphs(config, on_cpu);
  for (const std::string& line :
       llm::config::settings_without_effect(config, hosts.hosts * hosts.ranks)) {
    say_aside(line);
  }
  const auto shape = llm::setup::model_shape(config);
  if (config.adapter.kind != llm::config::AdapterKind::None) {
    say_aside(llm::adapters::adapter_line(*shape.shapes, config.adapter));
  }
  const std::optional<llm::inputs::RunData> data = data_of(config, shape, say_aside, progress);
  const auto batches_of = [&](const RunConfig& of) {
    const auto batch = llm::inputs::batch_shape(of.train, hosts.hosts * hosts.ranks);
    return data ? llm::plan::planned_batches(*data, of, batch)
                : llm::plan::planned_batches(of, shape.shapes->context_length());
  };
  if (!config.train.micro_batch) {
    const auto fastest = llm::plan::fastest_micro_batch(config, shape, hosts, batches_of);
    say_aside(llm::plan::micro_batch_line(fastest));
    config.train.micro_batch = fastest.value_or(1);
  }
  const llm::plan::PlannedBatches batches = batches_of(config);
  Plans plans{.run = llm::plan::plan_run(config, shape, hosts, batches)};
  plans.beside = llm::plan::plan_beside_estimate(config, shape, flags.link_gb_per_second);
  if (flags.search) {
    plans.found = llm::plan::search_plans(config, shape, hosts, batches_of);
  }
  if (flags.scaling) {
    plans.scaled = llm::plan::plan_scaling(config, shape, hosts,
                                           flags.ranks > 1 ? flags.ranks : kGpusOfAHost, batches);
  }
  print(flags.json ? json_text(plans) : fitted(people_text(plans), STDOUT_FILENO));
  const bool fits = plans.found ? !plans.found->empty() : plans.run.fits();
  return fits ? 0 : 1;
}

}  // namespace

void add_plan(CLI::App& program, Verb& chosen) {
  constexpr int kMany = 65'536;
  CLI::App* verb = program.add_subcommand(
      "plan", "Plan a run: memory per rank, whether it fits, and the time of a step");
  auto flags = std::make_shared<PlanFlags>();
  verb->option_defaults()->always_capture_default();
  verb->add_option("-n,--ranks", flags->ranks, "ranks per host")->check(within(1, kMany));
  verb->add_option("--nodes", flags->nodes, "number of hosts")->check(within(1, kMany));
  one_of(verb->add_option(
             "--device", flags->device,
             fmt::format("device of each rank: {}", fmt::join(llm::plan::device_names(), ", "))),
         llm::plan::device_names());
  verb->add_option("--memory", flags->memory_gb,
                   "memory of each GPU, or of each host whose ranks compute on the CPU, GB "
                   "(default: the device's)")
      ->check(above_zero());
  verb->add_option("--link", flags->link_gb_per_second,
                   "bandwidth of each host's link, GB/s (default: assumed)")
      ->check(above_zero());
  verb->add_flag(
      "--search", flags->search,
      "also list the settings of strategy, micro-batch, checkpointing and moments that fit");
  verb->add_flag("--scaling", flags->scaling,
                 "also plan 1, 2, 4, ... 1024 GPUs, each with the same batch, on hosts with -n "
                 "GPUs (default: 8)");
  verb->add_flag("--json", flags->json, "print one line of JSON on standard output");
  verb->footer(
      "Example: sherd plan recipes/bloom-560m-squad.toml -n 2 --train.micro_batch 2\nEvery "
      "configuration key is also a flag, as in sherd train. Nothing is allocated. Exit code 1: it "
      "does not fit, or with --search nothing does.");
  show_recipe_in_usage(*verb);
  verb->allow_extras();  // the configuration's flags are llm::config's to read
  verb->callback([verb, flags, &chosen] {
    chosen = [flags, words = verb->remaining()] { return plan(*flags, words); };
  });
}

}  // namespace app
