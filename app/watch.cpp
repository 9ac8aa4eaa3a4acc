// sherd watch RUN [--once]

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "app/rank.h"
#include "app/verbs.h"
#include "llm/runs/run_view.h"
#include "sherd/error.h"

namespace app {

namespace {

constexpr std::chrono::seconds kBetweenLooks{2};
constexpr int kColumnsOfAFile = 80;

int columns() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kColumnsOfAFile;
}

// In the place of what was there.
void redraw(const std::string& text) {
  constexpr const char* kHomeAndClear = "\x1b[H\x1b[2J";
  std::fputs(kHomeAndClear, stdout);
  std::fputs((text + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int watch(const std::string& folder, bool once) {
  while (true) {
    const auto state = llm::runs::state_of(folder);
    const std::string text = llm::runs::view_of(llm::runs::read_run(folder), state, columns());
    if (once || ::isatty(STDOUT_FILENO) == 0) {
      say(text);
      return 0;
    }
    redraw(text);
    if (state != llm::runs::RunState::Running) {
      return 0;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace

void add_watch(CLI::App& program, int& exit_code) {
  CLI::App* verb =
      program.add_subcommand("watch", "Show how far a run is, with its curves, in the terminal");
  auto folder = std::make_shared<std::string>();
  auto once = std::make_shared<bool>(false);
  verb->add_option("run", *folder, "the output folder of a run")->required();
  verb->add_flag("--once", *once, "show it once; the default where the output is no terminal");
  verb->footer(
      "Example: sherd watch runs/smollm2-135m-squad\n"
      "Shows it again every two seconds, until the run ends or Ctrl-C, which ends only the "
      "watching. "
      "The run does not notice.");
  verb->callback([folder, once, &exit_code] { exit_code = watch(*folder, *once); });
}

}  // namespace app
