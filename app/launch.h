#pragma once
// Ranks of this host that a verb starts itself.

#include <optional>
#include <string>
#include <vector>

namespace app {

/// Returns the words of the command line in CLI11's order, last first. A `--` stays where a user's
/// program follows `sherd launch` and its flags, or options of sbatch follow `sherd slurm`.
[[nodiscard]] std::vector<std::string> command_line(int argc, char** argv);

/// Removes `-n N`, `-nN`, `--ranks N` or `--ranks=N` from a command's words; nullopt if it is
/// absent. Throws sherd::Error(Usage) for anything but a number of ranks.
[[nodiscard]] std::optional<int> take_ranks(std::vector<std::string>& words);

/// Runs this program again with the same words as `ranks` ranks of this host and returns the exit
/// code. Returns none if this process is a rank itself: a launcher's, or the only one. A launcher
/// that started a single process does not count, except `sherd launch`. Throws sherd::Error(Usage)
/// if a launcher started a different number of ranks.
[[nodiscard]] std::optional<int> start_ranks(std::optional<int> ranks);

}  // namespace app
