#pragma once
// Which checkpoint of a run is meant.

#include <filesystem>
#include <string>

#include "llm/setup/checkpoints.h"

namespace llm::setup {

/// The folder of a run's checkpoint: "last", the newest that is intact; "best", that of the best
/// evaluation in the run's log; a step; or the checkpoint's folder itself. Not collective. Throws
/// sherd::Error: Usage for another word; InputMissing, saying which there are, where it is not
/// there; BadData for a log that cannot be right.
[[nodiscard]] IntactCheckpoint chosen_checkpoint(const std::filesystem::path& run,
                                                 const std::string& which);

/// The same where `path` is a run or a checkpoint's folder, of which there is nothing to choose;
/// `which` empty: the newest that is intact. Throws as chosen_checkpoint(); Usage for a choice in a
/// checkpoint; InputMissing for a path that is not there or has no checkpoint, naming `key`.
[[nodiscard]] IntactCheckpoint checkpoint_at(const std::string& path, const std::string& which,
                                             const std::string& key);

}  // namespace llm::setup
