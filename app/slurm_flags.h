#pragma once
// What the commands that write jobs for Slurm have in common.

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "launch/slurm_job.h"
#include "llm/config/run_config.h"

namespace app {

/// Of every job of a command, but for its nodes and ranks.
struct SlurmFlags {
  sherd::launch::SlurmJob job;
  std::optional<double> at_least_gb_per_second;
  std::optional<int> stop_seconds = {};  ///< none: what a save of the run takes decides
};

/// --setup, --cpus-per-rank, --bandwidth, --stop-before and what follows `--`.
void add_slurm_flags(CLI::App& verb, SlurmFlags& flags);

/// The job of `sherd train` with these words, which make this configuration.
[[nodiscard]] sherd::launch::SlurmJob train_job(const SlurmFlags& flags, const std::string& name,
                                                const std::vector<std::string>& words,
                                                const llm::config::RunConfig& config);

/// Gives a file to sbatch; the number of the job. Throws sherd::Error(Unavailable) where there is
/// no sbatch, or it refuses.
[[nodiscard]] std::string submit(const std::string& file);

/// "RUNNING", "PENDING", as squeue has it; empty for a job that has ended. Throws
/// sherd::Error(Unavailable) where squeue does not answer: the job may run all the same.
[[nodiscard]] std::string state_of_job(const std::string& job);

}  // namespace app
