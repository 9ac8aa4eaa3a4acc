#pragma once
// What a run is given by its caller, and what it gives back.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "llm/setup/run_note.h"
#include "llm/track/progress.h"
#include "llm/train/run_status.h"

namespace llm::train {

/// What one of these functions throws on one rank from the first step on ends all ranks: run()
/// throws it there, and an Error with its code and message on the others.
struct RunHooks {
  track::Output output;  ///< used on rank 0 alone
  /// Whether this rank was asked to stop: asked before each step, and in evaluations.
  std::function<bool()> stop_requested;
  /// Tells a launcher how long a save takes, on rank 0. At startup an estimate from the planned
  /// bytes and the measured rate of the disk, later the time of the last save.
  std::function<void(double seconds)> save_takes = [](double /*seconds*/) {};
  /// Tells a launcher, on rank 0, that the run has failed and will record that.
  std::function<void()> failing = [] {};
  std::shared_ptr<RunStatus> status = std::make_shared<RunStatus>();  ///< kept by the run
  setup::Launch launch = {};  ///< that this process belongs to
};

struct RunOutcome {
  bool stopped = false;  ///< on request, with what was learned in a checkpoint
  std::int64_t steps_done = 0;
  std::string checkpoint;  ///< the newest one's folder; empty if none was written
  std::string warning;     ///< of a run that diverged (diverged_line()); else empty
};

}  // namespace llm::train
