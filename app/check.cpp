// sherd check RECIPE [-n N] [--json] [--section.key …]

#include "llm/check/check.h"

#include <memory>
#include <optional>

#include <fmt/format.h>

#include "app/device.h"
#include "app/end_at_once.h"
#include "app/hub_names.h"
#include "app/launch.h"
#include "app/live_line.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/recipe.h"
#include "app/threads.h"
#include "app/verbs.h"
#include "launch/stop_request.h"
#include "llm/setup/options_of_config.h"
#include "sherd/error.h"

namespace app {

namespace {

struct CheckFlags {
  std::optional<int> ranks;
  bool json = false;
};

int check(Rank& rank, const CheckFlags& flags, const std::vector<std::string>& words) {
  const auto progress = progress_of(rank, flags.json);
  EndAtOnce end_at_once(
      static_cast<int>(sherd::ExitCode::Stopped),
      [] { return sherd::launch::StopRequest::requested(); },
      [&] {
        const auto tell = [] { say("stopped on request; the check left no files", true); };
        if (progress && !progress->try_aside(tell)) {
          tell();
        }
      });
  auto checking = std::make_unique<llm::track::Working>(progress.get(), "checking");
  llm::config::RunConfig config = load_recipe_on(rank, words, flags.json);
  HubNames names({.json_on_stdout = flags.json, .progress = progress.get()}, &rank);
  names.resolve(config);
  if (config.device.threads) {
    use_threads(*config.device.threads);
  }
  sherd::World world =
      rank.join({.timeout = config.parallel.timeout,
                 .device = device_of(rank, config.device.kind),
                 .transport = llm::setup::transport_of(llm::setup::shard_options(config).offload),
                 .reduce_scatter = llm::setup::reduce_scatter_of(config.parallel.reduce_scatter)});
  names.require_same(world);
  const llm::check::CheckHooks hooks{
      [&](const std::string& line) { progress->say(line); },
      [&](const llm::check::CheckItem& item) { progress->say(llm::check::to_text(item)); },
      [&](const std::function<void()>& work, std::function<void()> clean_up) {
        end_at_once.begin(work, std::move(clean_up));
      },
      progress.get()};
  const auto items = llm::check::check(config, world, hooks);
  world.barrier();  // the folder is gone when the first rank ends
  end_at_once.disarm();
  checking.reset();
  const bool ok = llm::check::all_ok(items);
  if (rank.is_first() && flags.json) {
    print_result(llm::check::to_json(items));
  } else if (rank.is_first()) {
    say(fmt::format("{}: {} items", ok ? "ok" : "not ok", items.size()));
  }
  world.barrier();  // no rank ends before the first has spoken
  return ok ? 0 : 1;
}

}  // namespace

void add_check(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "check", "Test a run before it starts: data, parameters, four steps, a checkpoint, memory");
  auto flags = std::make_shared<CheckFlags>();
  verb->add_option("-n,--ranks", flags->ranks, "ranks to start on this host (default: 1)")
      ->check(within(1, 1024));
  verb->add_flag("--json", flags->json, "print one line of JSON on standard output");
  verb->footer(
      "Example: sherd check recipes/smollm2-135m-squad.toml -n 2\nEvery configuration key is also "
      "a flag, as in sherd train. The run's output is not touched. Exit code 1: an item failed.");
  show_recipe_in_usage(*verb);
  verb->allow_extras();  // the configuration's flags are llm::config's to read
  verb->callback([verb, flags, &chosen] {
    chosen = [flags, words = verb->remaining()] {
      if (const auto code = start_ranks(flags->ranks)) {
        return *code;
      }
      Rank rank(OnSignal::RequestStop);
      return rank.run([&] { return check(rank, *flags, words); });
    };
  });
}

}  // namespace app
