#pragma once
// How fast the disk of a run is, and so how long a save takes.

#include <cstdint>
#include <optional>
#include <string>

#include "llm/config/run_config.h"

namespace llm::plan {

/// Bytes per second that the file system of `folder` makes durable: measured with a file of 8 MiB
/// and an fsync. The folder may be missing; then the nearest existing one above it is taken. None
/// if no file can be written there. Not collective.
[[nodiscard]] std::optional<double> disk_bytes_per_second(const std::string& folder);

/// The seconds that a save of `bytes` takes at the measured rate; none as above.
[[nodiscard]] std::optional<double> expected_save_seconds(const std::string& folder,
                                                          std::int64_t bytes);

/// How long before its time limit a job of this run is asked to stop: a minute for the step under
/// way, and three times the expected save. None if the model's folder or the disk cannot be read or
/// written here. Not collective.
[[nodiscard]] std::optional<int> seconds_to_stop(const config::RunConfig& config);

}  // namespace llm::plan
