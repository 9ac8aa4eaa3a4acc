#pragma once
// What is refused before any rank of this host is started.

#include <string>
#include <vector>

namespace app {

/// Refuses more ranks than eight per core, which would wait for each other most of the time. Throws
/// sherd::Error(Usage).
void require_cores_for(int ranks);

/// Refuses what no rank of `command` (the program, its verb, its words) could do: for `train` and
/// `check` a faulty configuration, and a batch that `world` ranks cannot divide. Throws
/// sherd::Error(Usage). Other verbs are left to their ranks.
void require_sound(const std::vector<std::string>& command, int world);

}  // namespace app
