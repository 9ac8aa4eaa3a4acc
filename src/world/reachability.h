#pragma once
// Whether the hosts of a world reach each other, before anything depends on it.

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "launch/rank_environment.h"

namespace sherd::detail {

/// The first rank of each host listens on `own_address`, where this host's ranks will, and tries to
/// connect to those of the others. Collective over all ranks that have met in `store`; takes at
/// most five seconds, and less than one where all is well. Throws Error(Unavailable), on all ranks
/// alike, naming who cannot reach which address; Error(PeerLost) where a rank says nothing.
void check_reachable(c10d::Store& store, const launch::RankEnvironment& environment,
                     const std::string& own_address, std::chrono::milliseconds timeout);

}  // namespace sherd::detail
