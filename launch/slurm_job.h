#pragma once
// The job file that runs a command under Slurm.

#include <string>
#include <vector>

namespace sherd::launch {

/// Settings of a job. Each Slurm task is a rank.
struct SlurmJob {
  std::vector<std::string> command;    ///< of each rank: program and arguments
  std::vector<std::string> test = {};  ///< a command run before it; if it fails, the job ends
  int nodes = 1;
  int ranks_per_node = 1;
  bool gpus = false;                    ///< a GPU for each rank
  int cpus_per_rank = 1;                ///< threads of a rank
  std::vector<std::string> setup = {};  ///< shell lines before it: "module load gcc"
  static constexpr int kUsualStopSeconds = 120;
  static constexpr int kMostStopSeconds = 65535;  ///< that Slurm takes
  /// How often a job of several nodes is queued again after a rank or node was lost.
  static constexpr int kMostRestartsAfterALoss = 5;
  int stop_seconds = kUsualStopSeconds;   ///< before the time limit, that a run has to save and end
  std::vector<std::string> options = {};  ///< of sbatch, as a shell passes them: "--time=1:00:00"
  /// Folder of the command's checkpoints, step-N/manifest.json each: a run that was stopped twice
  /// without a new one is not queued again. Empty: not checked.
  std::string checkpoints = {};
  /// A file that gets the exit code of the command or of the test, unless the job is queued again.
  std::string code_file = {};
};

/// Returns the job file. The job requests a stop before its time limit and is queued again if the
/// run ends with 75, so that a job may be shorter than its run; on several nodes also after 76, a
/// few times. Throws sherd::Error(Usage) for what Slurm would refuse: no nodes, an invalid or too
/// long option, a control character, a setup line with a line break.
[[nodiscard]] std::string slurm_job_file(const SlurmJob& job);

/// Returns a name for a job and its files: characters other than letters, digits, '.', '_', '=' and
/// '-' become '_'.
[[nodiscard]] std::string slurm_job_name(std::string text);

/// Returns a word quoted for the shell.
[[nodiscard]] std::string shell_word(const std::string& text);

}  // namespace sherd::launch
