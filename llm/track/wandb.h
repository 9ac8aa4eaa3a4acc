#pragma once
// Runs in Weights & Biases, written offline.

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "llm/config/run_config.h"
#include "llm/track/tracked_run.h"
#include "llm/track/tracker.h"
#include "llm/track/wandb_log.h"

namespace llm::track {

/// Whether WANDB_MODE or WANDB_DISABLED says so.
[[nodiscard]] bool wandb_is_disabled(const TrackedRun& run);

/// Writes the folder of an offline run, `wandb/offline-run-TIME-ID`, one for each session of a run,
/// all of one identifier. A later one holds what was logged in earlier sessions too: a server lets
/// the last folder of an identifier that it gets stand for the whole run. `wandb sync` takes it
/// there: the user's own program, which alone knows the key.
class Wandb final : public Tracker {
 public:
  /// Throws sherd::Error(Usage) for a WANDB_RUN_ID that is no name of a file.
  Wandb(const config::Sink& sink, const TrackedRun& run);

  [[nodiscard]] std::string name() const override { return "wandb"; }
  [[nodiscard]] std::string place() const override;
  void begin(std::int64_t steps_done, const EarlierPoints& earlier) override;
  void log(std::span<const Point> points) override;
  void end(End how) override;
  [[nodiscard]] std::string closing_words() const override;
  [[nodiscard]] std::chrono::milliseconds patience(End how) const override;

 private:
  void write_run(const std::string& id, std::int64_t steps_done);
  void write(std::string_view record_without_number);
  void write_row();

  TrackedRun run_;
  bool sync_;
  std::string root_;  // in which the folder `wandb` is
  std::string given_id_;
  std::string folder_;  // of this start of the run
  std::optional<WandbLog> file_;
  std::int64_t records_ = 0;
  double began_unix_seconds_ = 0;
  Point row_;  // of the newest step, whose evaluation may still come
  std::map<std::string, double> summary_;
  std::string closing_words_;
};

}  // namespace llm::track
