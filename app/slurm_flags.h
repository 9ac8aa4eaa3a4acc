#pragma once
// Flags and calls shared by the commands that write Slurm jobs.

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "launch/slurm_job.h"
#include "llm/config/run_config.h"

namespace app {

/// Settings of all jobs of a command, except nodes and ranks.
struct SlurmFlags {
  sherd::launch::SlurmJob job;
  std::optional<double> at_least_gb_per_second;
  std::optional<int> stop_seconds = {};  ///< none: derived from the time of a save
};

/// Adds --setup, --cpus-per-rank, --bandwidth, --stop-before and the options after `--`.
void add_slurm_flags(CLI::App& verb, SlurmFlags& flags);

/// Returns the job of `sherd train` with these words, which give this configuration.
[[nodiscard]] sherd::launch::SlurmJob train_job(const SlurmFlags& flags, const std::string& name,
                                                const std::vector<std::string>& words,
                                                const llm::config::RunConfig& config);

/// Returns the job of `sherd data prepare` with the same words: one task without GPUs on one host,
/// with the run's options, requests for GPUs excepted.
[[nodiscard]] sherd::launch::SlurmJob prepare_job(const sherd::launch::SlurmJob& run,
                                                  const std::vector<std::string>& words);

/// Submits a file with sbatch and returns the number of the job, which waits until the job `after`,
/// if there is one, has ended well. Throws sherd::Error(Unavailable) if sbatch is missing or
/// refuses it.
[[nodiscard]] std::string submit(const std::string& file, const std::string& after = "");

/// Returns squeue's state of a job, such as "RUNNING"; empty if it has ended. Throws
/// sherd::Error(Unavailable) if squeue does not answer: the job may still be running.
[[nodiscard]] std::string state_of_job(const std::string& job);

}  // namespace app
