// sherd train [RECIPE.toml] [--section.key value …]

#include "app/train.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include "app/device.h"
#include "app/end_at_once.h"
#include "app/hub_names.h"
#include "app/launch.h"
#include "app/live_line.h"
#include "app/rank.h"
#include "app/recipe.h"
#include "app/threads.h"
#include "app/verbs.h"
#include "launch/stop_request.h"
#include "llm/setup/agreement.h"
#include "llm/setup/options_of_config.h"
#include "llm/train/deterministic.h"
#include "llm/train/resume.h"
#include "llm/train/run_status.h"
#include "sherd/error.h"

namespace app {

namespace {

using sherd::ExitCode;

constexpr const char* kStoppedEarly = "stopped on request before the first step: ";

// `checkpoint`: at which the run begins; empty: at the model; none: not known.
std::string early_stop_line(const std::optional<std::string>& checkpoint) {
  if (!checkpoint) {
    return std::string(kStoppedEarly) + "no step was lost; give the same command again";
  }
  return kStoppedEarly + (checkpoint->empty()
                              ? "nothing was saved; the same command starts over"
                              : "no step was lost; the same command resumes from " + *checkpoint);
}

std::string ranks_line(const Rank& rank, int ranks) {
  const int threads = at::get_num_threads();
  const auto launcher = rank.environment().launcher;
  const std::string started =
      launcher == sherd::launch::Launcher::Alone
          ? ""
          : fmt::format(", started by {}", sherd::launch::to_text(launcher));
  return fmt::format("sherd train: {} {} × {} {}{}", ranks, ranks == 1 ? "rank" : "ranks", threads,
                     threads == 1 ? "thread" : "threads", started);
}

std::string stop_line(const llm::train::RunOutcome& outcome, const llm::config::RunConfig& config) {
  if (outcome.steps_done == 0) {
    return early_stop_line("");
  }
  const std::string& resume = config.checkpoint.resume;
  const bool fresh = resume == "never";  // "overwrite" acts once
  return fmt::format("stopped on request after step {}; {} resumes from {}", outcome.steps_done,
                     fresh ? "the command without --resume " + resume : "the same command",
                     outcome.checkpoint);
}

// What its rank prints before it ends at once: `checkpoint` as RunStatus::start().
void say_early_stop(const Rank& rank, const std::optional<std::string>& checkpoint) {
  if (rank.is_first()) {
    say(early_stop_line(checkpoint));
  }
}

llm::train::RunHooks hooks_of(const Rank& rank, std::shared_ptr<llm::train::RunStatus> status) {
  llm::train::RunHooks hooks = hooks_that_print(rank.environment());
  hooks.stop_requested = sherd::launch::StopRequest::requested;
  hooks.output.show = live_line();
  hooks.output.columns = [] { return ::isatty(STDOUT_FILENO) == 1 ? terminal_columns(0) : 0; };
  hooks.failing = [&rank] { rank.outlive_peers(); };
  hooks.save_takes = [&rank](double seconds) { rank.tell_save_seconds(seconds); };
  hooks.status = std::move(status);
  return hooks;
}

// Reads the recipe and meets the other ranks.
sherd::World join(Rank& rank, bool dry, const std::vector<std::string>& words,
                  llm::train::RunStatus& status, llm::config::RunConfig& config) {
  config = load_recipe_on(rank, words);
  const auto progress = progress_of(rank);  // until the run speaks for itself
  const llm::track::Working starting(progress.get(), "starting");
  HubNames names({.may_fetch = !dry, .progress = progress.get()}, &rank);
  names.resolve(config);
  status.set_start(llm::train::likely_start(config));
  if (config.device.threads) {
    use_threads(*config.device.threads);
  }
  const c10::DeviceType device = device_of(rank, config.device.kind);
  llm::train::prepare_deterministic(config.train.deterministic, device);
  sherd::World world =
      rank.join({.timeout = config.parallel.timeout,
                 .device = device,
                 .transport = llm::setup::transport_of(llm::setup::shard_options(config).offload),
                 .reduce_scatter = llm::setup::reduce_scatter_of(config.parallel.reduce_scatter)});
  names.require_same(world);
  return world;
}

int train(bool dry, const std::vector<std::string>& words) {
  Rank rank(OnSignal::RequestStop);
  const auto status = std::make_shared<llm::train::RunStatus>();
  rank.set_lost_at_a_stop([status] { return status->unsaved(); });
  try {
    const EndAtOnce end_at_once(
        static_cast<int>(ExitCode::Stopped),
        [&] { return sherd::launch::StopRequest::requested() && status->end_before_steps(); },
        [&] { say_early_stop(rank, status->start()); });
    llm::config::RunConfig config;
    const sherd::World world = join(rank, dry, words, *status, config);
    if (rank.is_first()) {
      say(ranks_line(rank, world.size()));
    }
    const llm::train::RunHooks hooks = hooks_of(rank, status);
    return dry ? (llm::train::dry_run(config, world, hooks) ? 0 : 1)
               : exit_code_of(llm::train::run(config, world, hooks), config, world, hooks);
  } catch (const llm::setup::ReportedElsewhere&) {
    rank.await_report();
    throw;
  }
}

}  // namespace

llm::train::RunHooks hooks_that_print(const sherd::launch::RankEnvironment& environment) {
  llm::train::RunHooks hooks;
  hooks.output.say = [](const std::string& line) { say(line); };
  hooks.output.warn = [](const std::string& line) { say(line, /*json_on_stdout=*/true); };
  hooks.launch.restarted = environment.restarted;
  if (!environment.launch.empty()) {
    hooks.launch.id = environment.launch;
  }
  return hooks;
}

int exit_code_of(const llm::train::RunOutcome& outcome, const llm::config::RunConfig& config,
                 const sherd::World& world, const llm::train::RunHooks& hooks) {
  if (world.rank() == 0 && outcome.stopped) {
    hooks.output.say(stop_line(outcome, config));
  }
  return static_cast<int>(outcome.stopped ? ExitCode::Stopped : ExitCode::Done);
}

void add_train(CLI::App& program, Verb& chosen) {
  CLI::App* verb =
      program.add_subcommand("train", "Fine-tune a model, configured by a TOML file and flags");
  show_recipe_in_usage(*verb);
  verb->footer([] {
    return "-n RANKS starts that many ranks on this host. --dry-run reports what the run would do, "
           "without a model (exit code 1: it does not fit). --resume is short for "
           "--checkpoint.resume. Every key of the file (docs/guide/configuration.md) is also a "
           "flag:\n" +
           llm::config::help_text();
  });
  verb->prefix_command();  // the flags are llm::config's to read
  verb->callback([verb, &chosen] {
    const std::vector<std::string> words = verb->remaining();
    if (std::any_of(words.begin(), words.end(),
                    [](const std::string& word) { return word == "--help" || word == "-h"; })) {
      throw CLI::CallForHelp();
    }
    chosen = [words] {
      std::vector<std::string> given = words;
      const bool dry = std::erase(given, "--dry-run") > 0;
      const auto code = start_ranks(take_ranks(given));
      return code ? *code : train(dry, given);
    };
  });
}

}  // namespace app
