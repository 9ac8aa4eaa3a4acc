// sherd slurm RECIPE --nodes N --gpus-per-node M … [--submit] -- --time=1:00:00 …

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/rank.h"
#include "app/recipe.h"
#include "app/verbs.h"
#include "files/output.h"
#include "launch/slurm_job.h"
#include "sherd/error.h"

namespace app {

namespace {

using sherd::Error;
using sherd::ExitCode;

struct SlurmFlags {
  sherd::launch::SlurmJob job;
  std::string recipe;
  std::string file;
  std::optional<int> gpus_per_node;
  bool submit = false;
};

std::string name_of(const SlurmFlags& flags) {
  std::string name = std::filesystem::path(flags.recipe).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isspace(c) != 0; }, '_');
  return name;
}

sherd::launch::SlurmJob job_of(const SlurmFlags& flags, const std::vector<std::string>& settings) {
  sherd::launch::SlurmJob job = flags.job;
  if (flags.gpus_per_node) {
    job.ranks_per_node = *flags.gpus_per_node;
    job.gpus = true;
  }
  job.options.insert(job.options.begin(), "--job-name=" + name_of(flags));
  job.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "train", flags.recipe};
  job.command.insert(job.command.end(), settings.begin(), settings.end());
  return job;
}

// Its answer is printed by sbatch itself.
int submit(const std::string& file) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execlp("sbatch", "sbatch", file.c_str(), nullptr);
    ::_exit(127);  // as a shell says that there is no such program
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  if (code == 127) {
    throw Error(
        ExitCode::Unavailable,
        fmt::format("there is no sbatch here. Submit {} where Slurm is: sbatch {}", file, file));
  }
  if (code != 0) {
    throw Error(ExitCode::Unavailable,
                fmt::format("sbatch did not take {}: its message is above", file));
  }
  return 0;
}

int slurm(const SlurmFlags& flags, const std::vector<std::string>& settings) {
  std::vector<std::string> words = settings;
  words.insert(words.begin(), flags.recipe);
  static_cast<void>(
      load_recipe(words, [](const std::string& line) { say(line, /*json_on_stdout=*/true); }));
  const std::string text = slurm_job_file(job_of(flags, settings));
  if (flags.file.empty() && !flags.submit) {
    say(text.substr(0, text.size() - 1));
    return 0;
  }
  const std::string file = flags.file.empty() ? name_of(flags) + ".sbatch" : flags.file;
  sherd::files::write_file(file, text);
  say("job file: " + file);
  return flags.submit ? submit(file) : 0;
}

}  // namespace

void add_slurm(CLI::App& program, int& exit_code) {
  CLI::App* verb = program.add_subcommand("slurm", "Write, or submit, the Slurm job of a run");
  auto flags = std::make_shared<SlurmFlags>();
  verb->add_option("recipe", flags->recipe, "a TOML file as sherd train reads")->required();
  verb->add_option("--nodes", flags->job.nodes, "hosts")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  auto* gpus = verb->add_option("--gpus-per-node", flags->gpus_per_node, "a rank for each")
                   ->check(CLI::Range(1, 1024));
  verb->add_option("--ranks-per-node", flags->job.ranks_per_node, "without GPUs (default: 1)")
      ->check(CLI::Range(1, 1024))
      ->excludes(gpus);
  verb->add_option("--cpus-per-rank", flags->job.cpus_per_rank, "threads of a rank")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  verb->add_option("--setup", flags->job.setup, "a line of the shell's before it; several times")
      ->take_all();
  verb->add_option("--stop-before", flags->job.stop_seconds,
                   "seconds before the time limit at which the run is asked to save and end")
      ->capture_default_str()
      ->check(CLI::Range(1, 65535));
  verb->add_option("-o,--out", flags->file, "file to write (default: standard output)");
  verb->add_flag("--submit", flags->submit, "give it to sbatch");
  verb->add_option("--sbatch", flags->job.options, "an option of sbatch; or all of them after --")
      ->take_all();
  verb->footer(
      "Example: sherd slurm recipes/llama-3-8b.toml --nodes 2 --gpus-per-node 8 --setup 'module "
      "load "
      "gcc' --submit -- --time=4:00:00 --partition=gpu\n"
      "Every key of the configuration is a flag, as of sherd train.");
  verb->allow_extras();  // the configuration's flags are llm::config's to read
  verb->callback([verb, flags, &exit_code] { exit_code = slurm(*flags, verb->remaining()); });
}

}  // namespace app
