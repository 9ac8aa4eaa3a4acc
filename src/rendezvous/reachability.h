#pragma once
// Whether the hosts of a world reach each other, before anything depends on it.

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "launch/rank_environment.h"

namespace sherd::detail {

/// The first rank of each host listens on `own_address`, where this host's ranks will, and tries to
/// connect to those of the others. Collective over all ranks that have met in `store`. Takes less
/// than a second if all hosts reach each other, some four seconds of tries if they do not, and up
/// to `timeout` or a minute, whichever is less, for each of two answers of a rank that is silent.
/// Throws Error(Unavailable), on all ranks alike, naming who cannot reach which address;
/// Error(PeerLost) if a rank says nothing.
void check_reachable(c10d::Store& store, const launch::RankEnvironment& environment,
                     const std::string& own_address, std::chrono::milliseconds timeout);

}  // namespace sherd::detail
