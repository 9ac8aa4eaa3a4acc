#include "app/slurm_flags.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <utility>

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/numbers.h"
#include "llm/plan/disk_rate.h"
#include "sherd/error.h"

namespace app {

namespace {

using sherd::Error;
using sherd::ExitCode;

// Standard output of a command, and its exit code.
std::pair<int, std::string> answer_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "re");
  std::string text;
  std::array<char, 512> bytes{};
  for (std::size_t size = 0;
       pipe != nullptr && (size = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
    text.append(bytes.data(), size);
  }
  const int status = pipe == nullptr ? -1 : ::pclose(pipe);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 1, text};
}

}  // namespace

void add_slurm_flags(CLI::App& verb, SlurmFlags& flags) {
  verb.add_option("--cpus-per-rank", flags.job.cpus_per_rank, "CPU threads per rank")
      ->capture_default_str()
      ->check(within(1, 1024));
  verb.add_option("--setup", flags.job.setup,
                  "a shell line to run first; may be given several times")
      ->take_all();
  verb.add_option("--bandwidth", flags.at_least_gb_per_second,
                  "first measure the bandwidth between ranks, and end the job if an all-gather of "
                  "64 MiB is below this many GB/s")
      ->check(above_zero());
  verb.add_option("--stop-before", flags.stop_seconds,
                  "seconds before the time limit at which the run saves and ends (default: a "
                  "minute and three saves, at least 120)")
      ->check(within(1, 65535));
  verb.add_option("--sbatch", flags.job.options,
                  "an option of sbatch; all of them may also follow --")
      ->take_all();
}

sherd::launch::SlurmJob train_job(const SlurmFlags& flags, const std::string& name,
                                  const std::vector<std::string>& words,
                                  const llm::config::RunConfig& config) {
  sherd::launch::SlurmJob job = flags.job;
  job.stop_seconds = flags.stop_seconds.value_or(std::clamp(
      llm::plan::seconds_to_stop(config).value_or(0), job.kUsualStopSeconds, job.kMostStopSeconds));
  job.options.insert(job.options.begin(), "--job-name=" + sherd::launch::slurm_job_name(name));
  job.checkpoints = (std::filesystem::path(config.train.output) / "checkpoints").string();
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (flags.at_least_gb_per_second) {
    job.test = {program, "bandwidth",  "--max-mib",
                "64",    "--at-least", fmt::format("{}", *flags.at_least_gb_per_second)};
  }
  job.command = {program, "train"};
  job.command.insert(job.command.end(), words.begin(), words.end());
  return job;
}

sherd::launch::SlurmJob prepare_job(const sherd::launch::SlurmJob& run,
                                    const std::vector<std::string>& words) {
  sherd::launch::SlurmJob job;
  job.setup = run.setup;
  job.cpus_per_rank = run.cpus_per_rank;
  for (const std::string& option : run.options) {
    const bool is_of_gpus = option.starts_with("--gres") || option.starts_with("--gpu");
    if (option.starts_with("--job-name=")) {
      job.options.push_back(option + "-prepare");
    } else if (!is_of_gpus) {
      job.options.push_back(option);
    }
  }
  job.command = {run.command.front(), "data", "prepare"};
  job.command.insert(job.command.end(), words.begin(), words.end());
  return job;
}

std::string submit(const std::string& file, const std::string& after) {
  constexpr int kNotFound = 127;  // the shell's code for a missing command
  const std::string waits =
      after.empty() ? "" : "--dependency=afterok:" + after + " --kill-on-invalid-dep=yes ";
  const auto [code, answer] =
      answer_of("sbatch --parsable " + waits + sherd::launch::shell_word(file));
  if (code == kNotFound) {
    throw Error(
        ExitCode::Unavailable,
        fmt::format("sbatch is not installed here. Submit {} on a host with Slurm: sbatch {}", file,
                    file));
  }
  const std::string job = answer.substr(0, answer.find(';'));  // the cluster's name may follow
  if (code != 0 || job.empty() || job.find_first_not_of("0123456789") != std::string::npos) {
    throw Error(ExitCode::Unavailable,
                fmt::format("sbatch refused {}: its message is above", file));
  }
  return job;
}

std::string state_of_job(const std::string& job) {
  if (job.empty()) {
    return "";
  }
  // Of all jobs of this user: asked for one that has ended, squeue fails as it does without an
  // answer of Slurm's.
  const auto [code, answer] = answer_of(
      "squeue --noheader --format='%i %T' --user=" + std::to_string(::getuid()) + " 2>&1");
  if (code != 0) {
    throw Error(ExitCode::Unavailable,
                fmt::format("the state of job {} is unknown because squeue failed: {}. Nothing was "
                            "submitted for its run; try again",
                            job, answer));
  }
  std::istringstream lines(answer);
  for (std::string number, state; lines >> number >> state;) {
    if (number == job) {
      return state;
    }
  }
  return "";
}

}  // namespace app
