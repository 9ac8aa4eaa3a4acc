#pragma once
// What trackers are told of a run.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "launch/rank_environment.h"
#include "llm/config/run_config.h"

namespace llm::track {

/// A run as trackers know it.
struct TrackedRun {
  config::RunConfig config;
  std::string name;  ///< log.name, else that of the output folder
  /// The process's environment, of which trackers read what is theirs. No value of it that is a
  /// secret is kept, shown or written.
  sherd::launch::EnvLookup environment;

  /// The first that is given and not empty: `given`, the environment's variable, `otherwise`.
  [[nodiscard]] std::string choose(const std::string& given, const char* variable,
                                   const std::string& otherwise) const;
};

[[nodiscard]] TrackedRun tracked_run(const config::RunConfig& config,
                                     sherd::launch::EnvLookup environment);

/// Each key of the configuration with its value as JSON: "optim.lr" and "2e-05",
/// "data.train.0.path" and "\"squad.json\"".
[[nodiscard]] std::vector<std::pair<std::string, std::string>> settings_of(
    const config::RunConfig& config);

/// This host's, as trackers show it.
[[nodiscard]] std::string host_name();

/// An identifier that the sessions of one run share: what stands in `train.output`/`file`, where
/// `steps_done` are done and it is there; else nothing.
[[nodiscard]] std::string earlier_id(const TrackedRun& run, const std::string& file,
                                     std::int64_t steps_done);
/// Keeps it for them. Throws sherd::Error: CannotWrite, StorageIo.
void keep_id(const TrackedRun& run, const std::string& file, const std::string& id);

}  // namespace llm::track
