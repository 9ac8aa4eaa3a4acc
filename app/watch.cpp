// sherd watch RUN [--once] [--step N [--json]]

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "app/live_line.h"
#include "app/rank.h"
#include "app/verbs.h"
#include "llm/inputs/data_preview.h"
#include "llm/inputs/preview_text.h"
#include "llm/runs/run_view.h"
#include "llm/text/printable.h"
#include "llm/train/start.h"
#include "sherd/error.h"
#include "sherd/world.h"

namespace app {

namespace {

using llm::runs::RunState;

constexpr std::chrono::seconds kBetweenLooks{2};
constexpr int kColumnsOfAFile = 80;

struct WatchFlags {
  std::string folder;
  bool once = false;
  std::optional<std::int64_t> step;
  bool json = false;
};

// Redraws in place.
void redraw(const std::string& text) {
  constexpr const char* kHomeAndClear = "\x1b[H\x1b[2J";
  std::fputs(kHomeAndClear, stdout);
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// A file has as many rows as it takes.
llm::runs::Screen screen() {
  return {.columns = terminal_columns(kColumnsOfAFile), .rows = terminal_rows()};
}

// Names of files and of the run's folder are anybody's.
std::string view_of(const std::string& folder, RunState state) {
  using llm::text::Lines;
  using llm::text::printable;
  try {
    return printable(llm::runs::view_of(llm::runs::read_run(folder), state, screen()), Lines::Keep);
  } catch (const sherd::Error& error) {
    if (state != RunState::Running || error.code() != sherd::ExitCode::InputMissing) {
      throw;
    }
    return printable(llm::runs::view_of_beginning(folder), Lines::Keep);
  }
}

int watch(const WatchFlags& flags) {
  while (true) {
    const RunState state = llm::runs::state_of(flags.folder);
    const std::string text = view_of(flags.folder, state);
    if (flags.once || ::isatty(STDOUT_FILENO) == 0) {
      print_result(text);
      return 0;
    }
    redraw(text);
    if (state != RunState::Running) {
      return 0;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// Other data would show samples that no rank has seen.
void require_same_data(const llm::runs::RunRecords& records, const llm::inputs::RunData& data) {
  if (!records.data_sha256.empty() && records.data_sha256 != data.identity.sha256) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("the training data of '{}' has changed since: its SHA-256 was {} and is now "
                    "{}. Restore the files that data.train names in its config.toml.",
                    records.name, records.data_sha256, data.identity.sha256));
  }
}

int show_step(const WatchFlags& flags) {
  const llm::runs::RunRecords records = llm::runs::read_run(flags.folder);
  sherd::World world = sherd::World::alone();
  llm::track::Progress progress(output_for_people(/*json_on_stdout=*/true));
  const auto silent = [](const std::string&) {};
  const auto run = llm::train::open_inputs(records.config, world, silent, &progress);
  require_same_data(records, run.data);
  const auto dealt =
      llm::inputs::samples_of_step(run, *flags.step, records.ranks > 0 ? records.ranks : 1);
  using llm::inputs::Marks;
  const Marks marks = ::isatty(STDOUT_FILENO) == 1 ? Marks::Colour : Marks::Brackets;
  say(flags.json ? to_json(dealt) : to_text(dealt, marks));
  return 0;
}

}  // namespace

void add_watch(CLI::App& program, Verb& chosen) {
  CLI::App* verb =
      program.add_subcommand("watch", "Show a run's progress and curves in the terminal");
  auto flags = std::make_shared<WatchFlags>();
  verb->add_option("run", flags->folder, "the output folder of a run")->required();
  CLI::Option* once = verb->add_flag("--once", flags->once,
                                     "show it once; the default if the output is not a terminal");
  CLI::Option* step =
      verb->add_option("--step", flags->step,
                       "show instead the samples of each rank in this step, as the model sees them")
          ->excludes(once);
  verb->add_flag("--json", flags->json, "with --step: print one line of JSON")->needs(step);
  verb->footer(
      "Example: sherd watch runs/smollm2-135m-squad\nRefreshes every two seconds until the run "
      "ends or you press Ctrl-C, which does not affect the run. --step reads the run's tokenizer "
      "and data, no weights.");
  verb->callback([flags, &chosen] {
    chosen = [flags] { return flags->step ? show_step(*flags) : watch(*flags); };
  });
}

}  // namespace app
