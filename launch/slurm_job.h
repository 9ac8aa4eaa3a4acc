#pragma once
// The job file that runs a command under Slurm.

#include <string>
#include <vector>

namespace sherd::launch {

/// What a job is to have. Each task of Slurm's is a rank.
struct SlurmJob {
  std::vector<std::string> command;    ///< of each rank: program and arguments
  std::vector<std::string> test = {};  ///< the same, run before it; where it fails, the job ends
  int nodes = 1;
  int ranks_per_node = 1;
  bool gpus = false;                    ///< a GPU for each rank
  int cpus_per_rank = 1;                ///< threads of a rank
  std::vector<std::string> setup = {};  ///< lines of the shell's before it: "module load gcc"
  static constexpr int kUsualStopSeconds = 120;
  static constexpr int kMostStopSeconds = 65535;  ///< that Slurm takes
  /// How often a job of several nodes is queued again after a rank or node was lost.
  static constexpr int kMostRestartsAfterALoss = 5;
  int stop_seconds = kUsualStopSeconds;   ///< before the time limit, that a run has to save and end
  std::vector<std::string> options = {};  ///< of sbatch, as a shell passes them: "--time=1:00:00"
  /// Where the command leaves its checkpoints, step-N/manifest.json each: a run that was stopped
  /// twice without a new one is not queued again. Empty: that is not looked at.
  std::string checkpoints = {};
  /// A file that gets the exit code of the command or of the test, unless the job is queued again.
  std::string code_file = {};
};

/// The file: asks for a stop before the time limit, and is queued again where the run ends with 75,
/// so that a job may be shorter than its run; on several nodes also after 76, a few times. Throws
/// sherd::Error(Usage) for what Slurm could not take: no nodes, an option that is none, is too long
/// or holds a control character, a line of setup that would begin another line.
[[nodiscard]] std::string slurm_job_file(const SlurmJob& job);

/// A name as Slurm takes it for a job, and as file names may hold it: what is no letter, digit,
/// '.', '_', '=' or '-' becomes '_'.
[[nodiscard]] std::string slurm_job_name(std::string text);

/// A word as the shell reads it back.
[[nodiscard]] std::string shell_word(const std::string& text);

}  // namespace sherd::launch
