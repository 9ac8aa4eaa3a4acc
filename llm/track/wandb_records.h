#pragma once
// Records of a run of Weights & Biases, as its wandb_internal.proto has them, without their number.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/track/tracker.h"

namespace llm::track {

/// What a run is called, and where it belongs. Empty: as the server chooses.
struct WandbRun {
  std::string id;
  std::string entity;
  std::string project;
  std::string display_name;
  std::string group;
  std::string job_type;
  std::string notes;
  std::vector<std::string> tags;
  std::string host;
  std::int64_t steps_done = 0;
  double began_unix_seconds = 0;
};

/// The record's number, which comes before all else that it holds.
[[nodiscard]] std::string numbered(std::int64_t number, std::string_view record);

[[nodiscard]] std::string run_record(const WandbRun& run, const config::RunConfig& config);
/// A row of the history: a step's figures. `runtime_seconds`: since the beginning.
[[nodiscard]] std::string history_record(const Point& point, double runtime_seconds);
/// The newest value of each metric.
[[nodiscard]] std::string summary_record(const std::map<std::string, double>& newest);
/// Exit codes as W&B has them: 0 is finished, 255 is stopped by the user, others are failed.
[[nodiscard]] std::string exit_record(End how, double runtime_seconds);

}  // namespace llm::track
