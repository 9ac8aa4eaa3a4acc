// sherd slurm RECIPE --nodes N --gpus-per-node M … [--submit] -- --time=1:00:00 …

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "app/numbers.h"
#include "app/rank.h"
#include "app/recipe.h"
#include "app/slurm_flags.h"
#include "app/verbs.h"
#include "files/output.h"
#include "launch/slurm_job.h"
#include "sherd/error.h"

namespace app {

namespace {

struct OneJob {
  SlurmFlags slurm;
  std::string recipe;
  std::string file;
  std::optional<int> gpus_per_node;
  bool submits = false;
  bool prepares_first = false;
};

// A job that requests GPUs does not fall back to the CPU if they cannot be used.
void ask_for_gpus(std::vector<std::string>& words, llm::config::DeviceKind kind) {
  using llm::config::DeviceKind;
  if (kind == DeviceKind::Cpu) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       "--gpus-per-node asks for GPUs that device.kind = \"cpu\" leaves idle: give "
                       "--ranks-per-node, or --device.kind auto");
  }
  if (kind == DeviceKind::Auto) {
    words.insert(words.end(), {"--device.kind", "cuda"});
  }
}

// The file of the job that prepares the data: "my.prepare.sbatch" beside "my.sbatch".
std::string prepare_file(const std::string& file) {
  std::filesystem::path path = file;
  return path.replace_extension(".prepare" + path.extension().string()).string();
}

// Writes the job that prepares the data, and returns its number where it is submitted.
std::string write_prepare_job(const OneJob& flags, const sherd::launch::SlurmJob& run,
                              const std::vector<std::string>& words, const std::string& file) {
  sherd::files::write_file(file, slurm_job_file(prepare_job(run, words)));
  say("job file that prepares the data: " + file);
  if (!flags.submits) {
    return "";
  }
  std::string job = submit(file);
  say("Submitted batch job " + job);
  return job;
}

int slurm(const OneJob& flags, const std::vector<std::string>& settings) {
  if (flags.prepares_first && flags.file.empty() && !flags.submits) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        "--prepare-first makes two job files: name one with --out, or give --submit");
  }
  std::vector<std::string> words = settings;
  words.insert(words.begin(), flags.recipe);
  const auto say_aside = [](const std::string& line) { say(line, /*json_on_stdout=*/true); };
  const llm::config::RunConfig config = load_recipe(words, say_aside);
  const std::string name = std::filesystem::path(flags.recipe).stem().string();
  const std::vector<std::string> words_to_prepare = words;
  if (flags.gpus_per_node) {
    ask_for_gpus(words, config.device.kind);
  }
  sherd::launch::SlurmJob job = train_job(flags.slurm, name, words, config);
  if (flags.gpus_per_node) {
    job.ranks_per_node = *flags.gpus_per_node;
    job.gpus = true;
  }
  const std::string text = slurm_job_file(job);
  if (flags.file.empty() && !flags.submits) {
    print_result(text.substr(0, text.size() - 1));
    return 0;
  }
  const std::string file = flags.file.empty() ? name + ".sbatch" : flags.file;
  sherd::files::write_file(file, text);
  say("job file: " + file);
  const std::string prepares =
      flags.prepares_first ? write_prepare_job(flags, job, words_to_prepare, prepare_file(file))
                           : "";
  if (flags.submits) {
    say("Submitted batch job " + submit(file, prepares));  // the words of sbatch
  }
  return 0;
}

}  // namespace

void add_slurm(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand("slurm", "Write or submit a run's Slurm job");
  auto flags = std::make_shared<OneJob>();
  verb->add_option("recipe", flags->recipe, "a recipe (TOML file), as for sherd train")->required();
  verb->add_option("--nodes", flags->slurm.job.nodes, "number of hosts")
      ->capture_default_str()
      ->check(within(1, 100'000));
  auto* gpus = verb->add_option("--gpus-per-node", flags->gpus_per_node,
                                "GPUs per host, with one rank for each")
                   ->check(within(1, 1024));
  verb->add_option("--ranks-per-node", flags->slurm.job.ranks_per_node,
                   "ranks per host without GPUs (default: 1)")
      ->check(within(1, 1024))
      ->excludes(gpus);
  add_slurm_flags(*verb, flags->slurm);
  verb->add_option("-o,--out", flags->file, "file to write (default: standard output)");
  verb->add_flag("--prepare-first", flags->prepares_first,
                 "also write a job without GPUs that prepares the data; with --submit the run "
                 "begins when it has ended");
  verb->add_flag("--submit", flags->submits, "submit the job with sbatch");
  verb->footer(
      "Example: sherd slurm my.toml --nodes 2 --ranks-per-node 4 --cpus-per-rank 8 --setup 'module "
      "load gcc' --submit -- --time=4:00:00 --partition=long\nEvery configuration key is also a "
      "flag, as in sherd train. With --gpus-per-node the run computes on GPUs (--device.kind "
      "cuda).");
  verb->allow_extras();  // the configuration's flags are llm::config's to read
  verb->callback([verb, flags, &chosen] {
    chosen = [flags, words = verb->remaining()] { return slurm(*flags, words); };
  });
}

}  // namespace app
