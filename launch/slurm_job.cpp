#include "launch/slurm_job.h"

#include <algorithm>

#include "sherd/error.h"

namespace sherd::launch {

namespace {

constexpr int kMostNodes = 100'000;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ExitCode::Usage, "no job file: " + why);
}

void check(const SlurmJob& job) {
  const auto in_range = [](int number) { return number >= 1 && number <= kMostNodes; };
  if (!in_range(job.nodes) || !in_range(job.ranks_per_node) || !in_range(job.cpus_per_rank)) {
    refuse("a job has at least one node, one rank on each, and one core for each");
  }
  const auto has_line_end = [](const std::string& text) {
    return text.find_first_of("\r\n") != std::string::npos;
  };
  for (const std::string& option : job.options) {
    if (!option.starts_with("-") || has_line_end(option)) {
      refuse("'" + option + "' after -- is no option of sbatch, such as --time=1:00:00");
    }
  }
  if (std::any_of(job.setup.begin(), job.setup.end(), has_line_end)) {
    refuse("--setup is one line; give it several times for several");
  }
}

bool names(const std::vector<std::string>& options, const std::string& option) {
  return std::any_of(options.begin(), options.end(), [&](const std::string& given) {
    return given == option || given.starts_with(option + "=");
  });
}

// Those that the user gives win.
std::string options_of(const SlurmJob& job) {
  std::vector<std::string> all = {"--nodes=" + std::to_string(job.nodes),
                                  "--ntasks-per-node=" + std::to_string(job.ranks_per_node),
                                  "--cpus-per-task=" + std::to_string(job.cpus_per_rank)};
  if (job.gpus) {
    all.push_back("--gpus-per-node=" + std::to_string(job.ranks_per_node));
  }
  all.push_back("--signal=TERM@" + std::to_string(job.stop_seconds));
  all.insert(all.end(), {"--requeue", "--open-mode=append", "--output=%x-%j.out"});
  std::string lines;
  for (const std::string& option : all) {
    if (!names(job.options, option.substr(0, option.find('=')))) {
      lines += "#SBATCH " + option + "\n";
    }
  }
  for (const std::string& option : job.options) {
    lines += "#SBATCH " + option + "\n";
  }
  return lines;
}

// Each task of Slurm's runs it.
std::string on_all_tasks(const std::vector<std::string>& command) {
  std::string line = "srun --cpus-per-task=$SLURM_CPUS_PER_TASK --kill-on-bad-exit=1";
  for (const std::string& word : command) {
    line += " " + shell_word(word);
  }
  return line;
}

}  // namespace

std::string shell_word(const std::string& text) {
  const bool plain =
      text.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%") ==
      std::string::npos;
  if (plain && !text.empty()) {
    return text;
  }
  std::string word = "'";
  for (const char c : text) {
    word += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return word + "'";
}

std::string slurm_job_file(const SlurmJob& job) {
  check(job);
  std::string file = "#!/bin/bash\n" + options_of(job) + "\n";
  for (const std::string& line : job.setup) {
    file += line + "\n";
  }
  file += "# Each task is a rank. The first node's address and a port are taken from the job.\n";
  file += "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n";
  if (!job.test.empty()) {
    file += on_all_tasks(job.test) + " || exit\n";
  }
  return file + on_all_tasks(job.command) +
         "\ncode=$?\nif [ $code -eq 75 ]; then        # stopped on request: the same command goes "
         "on\n    scontrol requeue $SLURM_JOB_ID\nfi\nexit $code\n";
}

}  // namespace sherd::launch
