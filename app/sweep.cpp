// sherd sweep FILE [--section.key a …] | sherd sweep RECIPE [-n 1,2,4] [--section.key a,b …]
//   [--html PAGE] [--slurm [--no-submit] -- --time=1:00:00 … | --launcher COMMAND]

#include "llm/runs/sweep.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "app/before_start.h"
#include "app/numbers.h"
#include "app/rank.h"
#include "app/slurm_flags.h"
#include "app/sweep_inputs.h"
#include "app/verbs.h"
#include "files/file_descriptor.h"
#include "files/output.h"
#include "launch/slurm_job.h"
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
  SlurmFlags slurm;
  bool makes_jobs = false;
  bool only_writes_jobs = false;
  std::string launcher;  ///< of runs over several hosts, without Slurm
  std::string html;      ///< where to write the page of the comparison
  bool json = false;
};

Sweep sweep_of(const SweepFlags& flags, const std::vector<std::string>& settings) {
  if (!llm::config::is_sweep_file(flags.file)) {
    return llm::config::sweep_of(flags.file, settings, flags.ranks);
  }
  if (flags.ranks != std::vector{1}) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format(
            "'{}' is a sweep, and a sweep sets the ranks of its runs itself: -n is for recipes",
            flags.file));
  }
  return llm::config::read_sweep(flags.file, settings);
}

// What `sherd train` takes.
std::vector<std::string> words_of(const Sweep& sweep, const SweepRun& run) {
  std::vector<std::string> words = llm::config::flags_of(sweep, run);
  words.insert(words.begin(), sweep.recipe);
  return words;
}

// On its ranks, in the same way as by hand; each finished run's folder is as one of `sherd train`.
int train(const Sweep& sweep, const SweepRun& run) {
  std::vector<std::string> command = words_of(sweep, run);
  command.insert(command.begin(), {fs::read_symlink("/proc/self/exe").string(), "train"});
  return sherd::launch::supervise(
      {.command = std::move(command), .ranks = run.ranks, .holds_stop_signals = true});
}

// The secret of the caller's own, kept from the one that supervise() makes for its ranks.
constexpr const char* kCallersSecret = "SHERD_CALLERS_JOB_SECRET";

// The shell's line that starts a run on its hosts. It is one process here, and no rank: what tells
// ranks where they are, how they wait and how they know each other must not reach theirs.
std::string line_of(const std::string& launcher) {
  const auto unless_given = [](const char* name) {
    return std::getenv(name) == nullptr ? std::string(" ") + name : "";
  };
  const char* secret = std::getenv("SHERD_JOB_SECRET");
  if (secret != nullptr) {
    ::setenv(kCallersSecret, secret, 1);
  }
  return "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "
         "SHERD_SUPERVISOR_FD SHERD_MASTER_FD" +
         unless_given("SHERD_JOB_SECRET") + unless_given("OMP_NUM_THREADS") +
         unless_given("GOMP_SPINCOUNT") +
         (secret == nullptr ? ""
                            : fmt::format("; export SHERD_JOB_SECRET=\"${}\"", kCallersSecret)) +
         "; export SHERD_BIN=" +
         sherd::launch::shell_word(fs::read_symlink("/proc/self/exe").parent_path()) + "; exec " +
         launcher + " \"$@\"";  // requests to stop are the launcher's
}

// LAUNCHER --nnodes HOSTS -n RANKS train …, as `sherd launch` has it, with what else that needs.
int train_on_hosts(const Sweep& sweep, const SweepRun& run, const std::string& launcher) {
  std::vector<std::string> command = words_of(sweep, run);
  command.insert(command.begin(),
                 {"/bin/sh", "-c", line_of(launcher), "sh", "--nnodes", std::to_string(run.hosts),
                  "-n", std::to_string(run.ranks / run.hosts), "train"});
  return sherd::launch::supervise({.command = std::move(command)});
}

void say_comparison(const Sweep& sweep, const std::vector<SweepRun>& done,
                    const SweepFlags& flags) {
  std::vector<fs::path> folders;
  for (const SweepRun& run : done) {
    folders.push_back(fs::path(sweep.output) / run.name);
  }
  if (folders.empty() && !flags.json) {
    return;
  }
  const auto comparison = llm::runs::compare(folders);
  print_result(flags.json ? to_json(comparison) : to_text(comparison));
  if (!flags.html.empty() && !folders.empty()) {
    sherd::files::write_file(flags.html, to_html(comparison));
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

// Each start of a sweep gives it to each run that is not done.
void refuse_overwrite(const Sweep& sweep) {
  for (const SweepRun& run : sweep.runs) {
    const llm::config::RunConfig config = llm::config::config_of(sweep, run);
    if (config.checkpoint.resume != "overwrite") {
      continue;
    }
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("checkpoint.resume = \"overwrite\" does not work in a sweep: "
                                   "the same command resumes stopped runs. To start over, delete "
                                   "the folders of its runs, such as '{}', or set another output",
                                   config.train.output));
  }
}

/// The runs of a sweep, each in its turn.
class Turns {
 public:
  Turns(const SweepFlags& flags, const Sweep& sweep)
      : flags_(flags), sweep_(sweep), records_(sweep.output) {
    for (const SweepRun& run : sweep.runs) {  // known of all before one begins
      if (run.hosts == 1 && !flags.makes_jobs) {
        require_cores_for(run.ranks);
      }
      is_done_.push_back(records_.is_done(run, llm::config::config_of(sweep, run)));
      if (run.hosts > 1 && !flags.makes_jobs && flags.launcher.empty() && !is_done_.back()) {
        throw sherd::Error(
            sherd::ExitCode::Usage,
            fmt::format("run '{}' needs {} hosts: give --slurm for a batch system, or --launcher "
                        "with a command that starts `sherd launch` on each host",
                        run.name, run.hosts));
      }
    }
    if (!flags.makes_jobs) {  // what one run lacks, others mostly lack too
      std::vector<NamedConfig> runs;
      for (std::size_t i = 0; i < sweep.runs.size(); ++i) {
        if (!is_done_[i]) {
          runs.push_back({sweep.runs[i].name, llm::config::config_of(sweep, sweep.runs[i])});
        }
      }
      require_inputs(runs, flags.json);
    }
    if (!flags.html.empty()) {  // created and removed again: a fault shows before hours of runs
      static_cast<void>(sherd::files::NewFile(flags.html));
    }
  }

  /// The exit code of the sweep.
  int take() {
    for (std::size_t i = 0; i < sweep_.runs.size(); ++i) {
      const SweepRun& run = sweep_.runs[i];
      which_ = fmt::format("run {} of {}, '{}'", i + 1, sweep_.runs.size(), run.name);
      if (is_done_[i]) {
        say(which_ + ": already done", flags_.json);
        done_.push_back(run);
      } else if (flags_.only_writes_jobs) {
        say(fmt::format("{}: job file {}", which_, write_job(run)), flags_.json);
      } else if (flags_.makes_jobs) {
        submit_as_job(run);
      } else if (const int code = train_here(run); is_stop(code)) {
        say(which_ + ": stopped; the same command resumes", flags_.json);
        return code;
      }
    }
    say_comparison(sweep_, done_, flags_);
    if (!failed_.empty()) {
      say("failed: " + failed_, flags_.json);
    }
    return failed_.empty() ? 0 : 1;
  }

 private:
  int train_here(const SweepRun& run) {
    using Clock = std::chrono::steady_clock;
    say(fmt::format("{}: {} rank{}{}", which_, run.ranks, run.ranks == 1 ? "" : "s",
                    run.hosts == 1 ? "" : fmt::format(" on {} hosts", run.hosts)),
        flags_.json);
    records_.add({run, llm::config::config_of(sweep_, run), std::nullopt, 0});
    const auto start = Clock::now();
    const int code = [&] {
      const StandardOutputAside aside(flags_.json);
      return run.hosts == 1 ? train(sweep_, run) : train_on_hosts(sweep_, run, flags_.launcher);
    }();
    if (is_stop(code)) {
      return code;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    records_.add({run, llm::config::config_of(sweep_, run), code, seconds});
    if (code == 0) {
      done_.push_back(run);
    } else {
      note_failure(run, code);
      say(fmt::format("{}: failed with exit code {}; continuing with the next run", which_, code),
          flags_.json);
    }
    return code;
  }

  void note_failure(const SweepRun& run, int code) {
    failed_ += (failed_.empty() ? "" : ", ") + fmt::format("'{}' ({})", run.name, code);
  }

  // A job that waits or runs is left alone, and one that failed would fail again; one that has
  // ended otherwise without its run goes on as another.
  void submit_as_job(const SweepRun& run) {
    const std::string before = records_.job_of(run);
    if (const std::string state = state_of_job(before); !state.empty()) {
      say(fmt::format("{}: job {} is {}", which_, before, state), flags_.json);
      return;
    }
    const llm::config::RunConfig config = llm::config::config_of(sweep_, run);
    const fs::path code_file = records_.code_file_of(run);
    if (const auto code = records_.failure_of_job(run, config)) {
      note_failure(run, *code);
      say(fmt::format("{}: job {} failed with exit code {}, and is not submitted again: change its "
                      "settings, or delete {}",
                      which_, before, *code, code_file.string()),
          flags_.json);
      return;
    }
    fs::remove(code_file);
    const std::string number = submit(write_job(run));
    records_.add({run, config, std::nullopt, 0, number});
    say(fmt::format("{}: job {}{}", which_, number,
                    before.empty() ? "" : fmt::format(" after {}, which has ended", before)),
        flags_.json);
  }

  // The path of its file.
  [[nodiscard]] std::string write_job(const SweepRun& run) const {
    sherd::launch::SlurmJob job = train_job(flags_.slurm, run.name, words_of(sweep_, run),
                                            llm::config::config_of(sweep_, run));
    job.code_file = records_.code_file_of(run).string();
    job.nodes = run.hosts;
    job.ranks_per_node = run.ranks / run.hosts;
    std::string file = (fs::path(sweep_.output) / (run.name + ".sbatch")).string();
    sherd::files::write_file(file, slurm_job_file(job));
    return file;
  }

  const SweepFlags& flags_;
  const Sweep& sweep_;
  llm::runs::SweepRecords records_;
  std::vector<bool> is_done_;
  std::vector<SweepRun> done_;
  std::string which_;   ///< of the runs has its turn
  std::string failed_;  ///< names and exit codes
};

}  // namespace

void add_sweep(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "sweep", "Run a recipe with several settings, one run after the other, and compare the runs");
  auto flags = std::make_shared<SweepFlags>();
  verb->add_option("file", flags->file, "a sweep (a TOML file with [[run]]), or a recipe")
      ->required();
  verb->add_option("-n,--ranks", flags->ranks,
                   "with a recipe: numbers of ranks, such as 1,2,4 (default: 1)")
      ->delimiter(',')
      ->check(within(1, 1024));
  verb->add_flag("--json", flags->json, "print the comparison as one line of JSON");
  verb->add_option("--html", flags->html, "also write the page of `sherd compare --html`");
  auto* slurm = verb->add_flag(
      "--slurm", flags->makes_jobs,
      "submit a job for each run; called again, show which are done and submit the others");
  verb->add_flag("--no-submit", flags->only_writes_jobs,
                 "write the job files without submitting them");
  verb->add_option("--launcher", flags->launcher,
                   "a shell command that starts runs on several hosts: it gets the words --nnodes "
                   "HOSTS -n RANKS train …, and runs `sherd launch` with them on each host")
      ->excludes(slurm);
  add_slurm_flags(*verb, flags->slurm);
  for (const char* const flag :
       {"--no-submit", "--cpus-per-rank", "--setup", "--bandwidth", "--stop-before", "--sbatch"}) {
    verb->get_option(flag)->needs(slurm);
  }
  verb->footer(
      "Examples: sherd sweep recipes/workshop/small-bloom.toml\n          sherd sweep my.toml "
      "--parallel.strategy no_shard,full_shard -n 1,2\n          sherd sweep my-sweep.toml --slurm "
      "-- --time=1:00:00\n          sherd sweep recipes/workshop/small-bloom.toml --train.epochs 1 "
      "   (for all its runs)\nThe same command skips finished runs and resumes stopped ones. A "
      "failed run is recorded, and the others continue. Exit code 1: a run failed.");
  verb->allow_extras();  // the configuration's flags are llm::config's to read
  verb->callback([verb, flags, &chosen] {
    chosen = [flags, words = verb->remaining()] {
      const Sweep sweep = sweep_of(*flags, words);
      refuse_overwrite(sweep);
      return Turns(*flags, sweep).take();
    };
  });
}

}  // namespace app
