// sherd sweep FILE | sherd sweep RECIPE [-n 1,2,4] [--section.key a,b …]

#include "llm/runs/sweep.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "app/rank.h"
#include "app/verbs.h"
#include "files/file_descriptor.h"
#include "launch/supervisor.h"
#include "llm/config/sweep_file.h"
#include "llm/runs/comparison.h"
#include "sherd/error.h"

namespace app {

namespace {

namespace fs = std::filesystem;
using llm::config::Sweep;
using llm::config::SweepRun;

struct SweepFlags {
  std::string file;
  std::vector<int> ranks = {1};
  bool json = false;
};

Sweep sweep_of(const SweepFlags& flags, const std::vector<std::string>& settings) {
  if (!llm::config::is_sweep_file(flags.file)) {
    return llm::config::sweep_of(flags.file, settings, flags.ranks);
  }
  if (!settings.empty() || flags.ranks != std::vector{1}) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("'{}' is a sweep, which says itself what its runs are: settings "
                                   "and -n go with a recipe",
                                   flags.file));
  }
  return llm::config::read_sweep(flags.file);
}

// On its ranks, in the same way as by hand; each finished run's folder is as one of `sherd train`.
int train(const Sweep& sweep, const SweepRun& run) {
  std::vector<std::string> command = {fs::read_symlink("/proc/self/exe").string(), "train",
                                      sweep.recipe};
  const std::vector<std::string> flags = llm::config::flags_of(sweep, run);
  command.insert(command.end(), flags.begin(), flags.end());
  return sherd::launch::supervise(
      {.command = std::move(command), .ranks = run.ranks, .holds_stop_signals = true});
}

void say_comparison(const Sweep& sweep, const std::vector<SweepRun>& done, bool json) {
  std::vector<fs::path> folders;
  for (const SweepRun& run : done) {
    folders.push_back(fs::path(sweep.output) / run.name);
  }
  if (json || !folders.empty()) {
    const auto comparison = llm::runs::compare(folders);
    say(json ? to_json(comparison) : to_text(comparison));
  }
}

// On request, gently or at once; what is killed otherwise has failed.
bool is_stop(int code) {
  constexpr int kKilled = 128;
  return code == static_cast<int>(sherd::ExitCode::Stopped) || code == kKilled + SIGINT ||
         code == kKilled + SIGTERM;
}

// Standard output is kept for JSON while it lives: what ranks print there goes to standard error.
class StandardOutputAside {
 public:
  explicit StandardOutputAside(bool aside) : kept_(aside ? ::dup(STDOUT_FILENO) : -1) {
    if (aside) {
      ::dup2(STDERR_FILENO, STDOUT_FILENO);
    }
  }
  StandardOutputAside(const StandardOutputAside&) = delete;
  StandardOutputAside& operator=(const StandardOutputAside&) = delete;
  ~StandardOutputAside() {
    if (kept_.get() >= 0) {
      ::dup2(kept_.get(), STDOUT_FILENO);
    }
  }

 private:
  sherd::files::FileDescriptor kept_;
};

int sweep(const SweepFlags& flags, const std::vector<std::string>& settings) {
  using Clock = std::chrono::steady_clock;
  const Sweep all = sweep_of(flags, settings);
  llm::runs::SweepRecords records(all.output);
  std::vector<SweepRun> done;
  std::string failed;
  std::vector<bool> is_done;  // known of all before one begins
  for (const SweepRun& run : all.runs) {
    is_done.push_back(records.is_done(run, llm::config::config_of(all, run)));
  }
  for (std::size_t i = 0; i < all.runs.size(); ++i) {
    const SweepRun& run = all.runs[i];
    const std::string which = fmt::format("run {} of {}, '{}'", i + 1, all.runs.size(), run.name);
    if (is_done[i]) {
      say(which + ": done before", flags.json);
      done.push_back(run);
      continue;
    }
    say(fmt::format("{}: {} rank{}", which, run.ranks, run.ranks == 1 ? "" : "s"), flags.json);
    const auto start = Clock::now();
    const int code = [&] {
      const StandardOutputAside aside(flags.json);
      return train(all, run);
    }();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (is_stop(code)) {
      say(which + ": stopped; the same command goes on", flags.json);
      return code;
    }
    records.add({run, llm::config::config_of(all, run), code, seconds});
    if (code == 0) {
      done.push_back(run);
    } else {
      failed += (failed.empty() ? "" : ", ") + fmt::format("'{}' ({})", run.name, code);
      say(fmt::format("{}: failed with exit code {}; the next one begins", which, code),
          flags.json);
    }
  }
  say_comparison(all, done, flags.json);
  if (!failed.empty()) {
    say("failed: " + failed, flags.json);
  }
  return failed.empty() ? 0 : 1;
}

}  // namespace

void add_sweep(CLI::App& program, int& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "sweep", "Runs that differ in some settings, one after the other, and their table");
  auto flags = std::make_shared<SweepFlags>();
  verb->add_option("file", flags->file, "a sweep (a TOML file with [[run]]), or a recipe")
      ->required();
  verb->add_option("-n,--ranks", flags->ranks, "of a recipe: numbers of ranks, 1,2,4 (default: 1)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  verb->add_flag("--json", flags->json, "the comparison as one line of JSON");
  verb->footer(
      "Examples: sherd sweep recipes/workshop/workshop.toml\n"
      "          sherd sweep my.toml --parallel.strategy no_shard,full_shard -n 1,2\n"
      "Runs that are done are passed over when it is started again; one that fails is recorded, "
      "and "
      "the others go on. Exit code 1: a run failed.");
  verb->allow_extras();  // the configuration's flags are llm::config's to read
  verb->callback([verb, flags, &exit_code] { exit_code = sweep(*flags, verb->remaining()); });
}

}  // namespace app
