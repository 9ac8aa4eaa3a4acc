#pragma once
// A training run from configuration to the last checkpoint.

#include <functional>
#include <memory>
#include <string>

#include "llm/config/run_config.h"
#include "llm/setup/run_note.h"
#include "llm/train/unsaved_steps.h"
#include "sherd/world.h"

namespace llm::train {

/// Callbacks of a run to its caller. What one of them throws on one rank from the first step on, or
/// in `prepared`, ends all ranks: run() throws it there, and an Error with its code and message on
/// the others.
struct RunHooks {
  /// A line for people; called on rank 0 alone, on one thread at a time but not always the same.
  std::function<void(const std::string& line)> say;
  /// Whether this rank was asked to stop: asked before each step, and in evaluations.
  std::function<bool()> stop_requested;
  /// Given, before anything takes long, a clean-up for a process that ends at once.
  std::function<void(std::function<void()> clean_up)> before_an_end_at_once =
      [](const std::function<void()>& /*clean_up*/) {};
  /// Called on every rank before the first step: until then there is nothing to save, and a process
  /// that is asked to stop may end at once; from then on the run stops by `stop_requested`.
  std::function<void()> prepared = [] {};
  /// Shows what the run is at, as track::Output::show; none where nobody watches a terminal.
  std::function<void(const std::string& text)> show = {};
  /// Columns of the terminal that reads `say`, to which step lines are fitted; 0: any.
  std::function<int()> columns = [] { return 0; };
  /// Called on rank 0 where the run has failed, before it records that.
  std::function<void()> failing = [] {};
  /// A line that must not be missed, such as of a full disk; called as `say` is, which takes its
  /// place where it is none.
  std::function<void(const std::string& line)> warn = {};
  /// Kept up to date by the run: which steps are lost if the process ends now.
  std::shared_ptr<UnsavedSteps> unsaved = std::make_shared<UnsavedSteps>();
  /// Called on rank 0: how long a save takes, in seconds. At startup an estimate from the planned
  /// bytes and the measured rate of the disk, later the time of the last save.
  std::function<void(double seconds)> save_takes = [](double /*seconds*/) {};
  /// Called on every rank once it is known where the run begins: with the folder of a checkpoint,
  /// or nothing for the model.
  std::function<void(const std::string& checkpoint)> begins_at =
      [](const std::string& /*checkpoint*/) {};
  setup::Launch launch = {};  ///< that this process belongs to
};

struct RunOutcome {
  bool stopped = false;  ///< on request, with what was learned in a checkpoint
  std::int64_t steps_done = 0;
  std::string checkpoint;  ///< the newest one's folder; empty if none was written
  std::string warning;     ///< of a run that diverged (diverged_line()); else empty
};

/// Trains as `config` says: all ranks agree on the run, the output folder is locked, then come
/// tokenizer, data, model in shards, optimizer, resume, and step after step with checkpoints and
/// evaluations. However it ends from then on, it leaves summary.json and a line of it. Collective.
/// Throws sherd::Error with the exit code that the failure deserves. A run that was asked to stop
/// and then loses its peers (they end, or hang) throws Error(StorageIo), which names the steps that
/// no checkpoint holds; if there are none, it returns as stopped.
RunOutcome run(const config::RunConfig& config, sherd::World world, const RunHooks& hooks);

/// Says what run() would do, as far as that is known without a model: the configuration with its
/// choices made, length, where it begins, and its plan. Reads data and checkpoints, writes nothing
/// but the token cache. Collective. Returns whether it fits. Throws sherd::Error as run() does
/// before it loads the model.
[[nodiscard]] bool dry_run(const config::RunConfig& config, sherd::World world,
                           const RunHooks& hooks);

}  // namespace llm::train
