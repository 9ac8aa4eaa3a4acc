#pragma once
// Which checkpoint of a run is meant.

#include <filesystem>
#include <string>

#include "llm/train/checkpoints.h"

namespace llm::train {

/// The folder of a run's checkpoint: "last", the newest that is intact; "best", that of the best
/// evaluation in the run's log; or a step. Not collective. Throws sherd::Error: Usage for another
/// word; InputMissing, saying which there are, where it is not there; BadData for a log that cannot
/// be right.
[[nodiscard]] IntactCheckpoint chosen_checkpoint(const std::filesystem::path& run,
                                                 const std::string& which);

}  // namespace llm::train
