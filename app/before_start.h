#pragma once
// Checks before any rank of this host is started.

#include <string>
#include <vector>

namespace app {

/// Throws sherd::Error(Usage) for more than eight ranks per core, which would mostly wait for each
/// other.
void require_cores_for(int ranks);

/// Throws sherd::Error(Usage) for a `command` (the program, its verb, its words) that must fail on
/// every rank: `train` or `check` with a faulty configuration, or with a batch that `world` ranks
/// cannot divide. Does not check other verbs.
void require_sound(const std::vector<std::string>& command, int world);

}  // namespace app
