#pragma once
// Whether a run will do what it should: `sherd check`.

#include <functional>
#include <string>
#include <vector>

#include "llm/check/check_item.h"
#include "llm/check/scratch_folder.h"
#include "llm/config/run_config.h"
#include "llm/track/progress.h"
#include "sherd/world.h"

namespace llm::check {

struct CheckHooks {
  std::function<void(const std::string& line)> say;  ///< a line for people; called on rank 0 alone
  std::function<void(const CheckItem& item)> found;  ///< each item as it is known; on rank 0 alone
  BeginsToBeUndone begin;               ///< what a process that is asked to stop has to undo
  track::Progress* progress = nullptr;  ///< told what takes long; null on other ranks
};

/// Runs each item on the run's real ranks: configuration, data, model, four steps and a checkpoint
/// in a folder of its own, which is removed. Nothing of the run's output is touched. Collective;
/// all ranks return the same. Throws sherd::Error as train::run() does for what cannot be read or
/// does not fit, and NonFinite for a loss that is not.
[[nodiscard]] std::vector<CheckItem> check(const config::RunConfig& config, sherd::World world,
                                           const CheckHooks& hooks);

}  // namespace llm::check
