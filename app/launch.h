#pragma once
// Ranks of this host that a verb starts itself.

#include <optional>
#include <string>
#include <vector>

namespace app {

/// The words of the command line as CLI11 takes them, last first. A `--` after `sherd launch` and
/// its flags begins a program of the user's, and stays; after `sherd slurm`, options of sbatch.
[[nodiscard]] std::vector<std::string> command_line(int argc, char** argv);

/// Removes `-n N`, `-nN`, `--ranks N` or `--ranks=N` from a command's words; nullopt if it is
/// absent. Throws sherd::Error(Usage) for anything but a number of ranks.
[[nodiscard]] std::optional<int> take_ranks(std::vector<std::string>& words);

/// Runs this program again, as it was called, as `ranks` ranks of this host, and returns the exit
/// code; none if this process is a rank itself: one of a launcher's, or the only one. A launcher
/// that started a single process does not count, except `sherd launch`. Throws sherd::Error(Usage)
/// if a launcher started another number of ranks.
[[nodiscard]] std::optional<int> start_ranks(std::optional<int> ranks);

}  // namespace app
