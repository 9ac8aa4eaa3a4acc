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
#include "llm/setup/options_of_config.h"
#include "llm/train/deterministic.h"
#include "llm/train/resume.h"
#include "llm/train/unsaved_steps.h"
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

int train(Rank& rank, bool dry, const std::vector<std::string>& words) {
  const auto stop_requested = [] { return sherd::launch::StopRequest::requested(); };
  EndAtOnce end_at_once(static_cast<int>(ExitCode::Stopped), stop_requested, [&rank] {
    if (rank.is_first()) {
      say(early_stop_line(std::nullopt));
    }
  });
  const auto begins_at = [&](const std::optional<std::string>& checkpoint) {
    end_at_once.set_last_words([&rank, checkpoint] {
      if (rank.is_first()) {
        say(early_stop_line(checkpoint));
      }
    });
  };
  llm::config::RunConfig config = load_recipe_on(rank, words);
  auto progress = progress_of(rank);  // until the run speaks for itself
  auto starting = std::make_unique<llm::track::Working>(progress.get(), "starting");
  HubNames names({.may_fetch = !dry, .progress = progress.get()}, &rank);
  names.resolve(config);
  begins_at(llm::train::likely_start(config));
  if (config.device.threads) {
    use_threads(*config.device.threads);
  }
  const c10::DeviceType device = device_of(rank, config.device.kind);
  llm::train::prepare_deterministic(config.train.deterministic, device);
  const auto unsaved = std::make_shared<llm::train::UnsavedSteps>();
  rank.set_lost_at_a_stop([unsaved] { return unsaved->text(); });
  sherd::World world =
      rank.join({.timeout = config.parallel.timeout,
                 .device = device,
                 .transport = llm::setup::transport_of(llm::setup::shard_options(config).offload),
                 .reduce_scatter = llm::setup::reduce_scatter_of(config.parallel.reduce_scatter)});
  names.require_same(world);
  starting.reset();
  progress.reset();
  if (rank.is_first()) {
    say(ranks_line(rank, world.size()));
  }
  llm::train::RunHooks hooks = hooks_that_print(rank.environment());
  hooks.stop_requested = stop_requested;
  hooks.before_an_end_at_once = [&](std::function<void()> clean_up) {
    end_at_once.set_clean_up(std::move(clean_up));
  };
  hooks.begins_at = begins_at;
  hooks.prepared = [&] { end_at_once.disarm(); };
  hooks.show = live_line();
  hooks.columns = [] { return ::isatty(STDOUT_FILENO) == 1 ? terminal_columns(0) : 0; };
  hooks.failing = [&rank] { rank.outlive_peers(); };
  hooks.unsaved = unsaved;
  hooks.save_takes = [&rank](double seconds) { rank.tell_save_seconds(seconds); };
  return train_together(config, world, hooks, dry);
}

}  // namespace

llm::train::RunHooks hooks_that_print(const sherd::launch::RankEnvironment& environment) {
  llm::train::RunHooks hooks;
  hooks.say = [](const std::string& line) { say(line); };
  hooks.warn = [](const std::string& line) { say(line, /*json_on_stdout=*/true); };
  hooks.launch.restarted = environment.restarted;
  if (!environment.launch.empty()) {
    hooks.launch.id = environment.launch;
  }
  return hooks;
}

int train_together(const llm::config::RunConfig& config, const sherd::World& world,
                   const llm::train::RunHooks& hooks, bool dry) {
  if (dry) {
    return llm::train::dry_run(config, world, hooks) ? 0 : 1;
  }
  const llm::train::RunOutcome outcome = llm::train::run(config, world, hooks);
  if (world.rank() == 0 && outcome.stopped) {
    hooks.say(stop_line(outcome, config));
  }
  return static_cast<int>(outcome.stopped ? ExitCode::Stopped : ExitCode::Done);
}

void add_train(CLI::App& program, int& exit_code) {
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
  verb->callback([verb, &exit_code] {
    std::vector<std::string> words = verb->remaining();
    if (std::any_of(words.begin(), words.end(),
                    [](const std::string& word) { return word == "--help" || word == "-h"; })) {
      throw CLI::CallForHelp();
    }
    const bool dry = std::erase(words, "--dry-run") > 0;
    if (const auto code = start_ranks(take_ranks(words))) {
      exit_code = *code;
      return;
    }
    Rank rank(OnSignal::RequestStop);
    exit_code = rank.run([&] { return train(rank, dry, words); });
  });
}

}  // namespace app
