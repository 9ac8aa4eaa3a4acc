#pragma once
// A list of runs that differ in some settings.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "llm/config/run_config.h"

namespace llm::config {

struct SweepRun {
  std::string name;  ///< also of its folder in the sweep's output
  int ranks = 1;     ///< in all
  int hosts = 1;     ///< on which they are, as many on each
  std::vector<std::pair<std::string, std::string>> set;  ///< key and value, as flags take them
};

struct Sweep {
  std::string recipe;  ///< a TOML file as `load` reads
  std::string output;
  std::vector<SweepRun> runs;
};

/// Whether a file is a sweep: it has [[run]]. False for what cannot be read.
[[nodiscard]] bool is_sweep_file(const std::filesystem::path& file);

/// Reads
///
///     recipe = "my.toml"
///     output = "runs/my-sweep"
///     [[run]]
///     name = "sharded"
///     ranks = 2
///     hosts = 1
///     set = { "parallel.strategy" = "full_shard", "train.micro_batch" = 2 }
///
/// and adds the settings to those of each run, as `load` takes flags; of train.output the sweep's
/// output. Throws sherd::Error(Usage) with all faults, each with file:line, those of every run's
/// configuration among them.
[[nodiscard]] Sweep read_sweep(const std::filesystem::path& file,
                               const std::vector<std::string>& settings = {});

/// Each combination of values of the flags that give several, a,b, with each number of ranks. What
/// is itself a list is none. Names are made of what differs. Throws sherd::Error(Usage) as
/// `read_sweep`.
[[nodiscard]] Sweep sweep_of(const std::filesystem::path& recipe,
                             const std::vector<std::string>& flags, const std::vector<int>& ranks);

/// What `load` gives for a run.
[[nodiscard]] RunConfig config_of(const Sweep& sweep, const SweepRun& run);

/// What `load` takes, for a run into its folder of the sweep's output.
[[nodiscard]] std::vector<std::string> flags_of(const Sweep& sweep, const SweepRun& run);

}  // namespace llm::config
