#pragma once
// How ranks of one host find out that they can share memory, and set it up.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/rank_place.h"
#include "comm/shared_memory.h"

namespace sherd::detail {

/// Returns each rank's text, by rank; a collective of the world.
using AllGather = std::function<std::vector<std::string>(const std::string&)>;

/// Returns memory for the ranks of the group on this host: all of them, or consecutive ones, as
/// many as on each of its other hosts. Returns nothing, on all ranks of the group, if that is not
/// so or if some ranks cannot share memory. Throws Error(Unavailable) if the transport is
/// SharedMemory and they are not all on this host. Collective over the world.
using ShareMemory =
    std::function<std::optional<HostMemory>(const RankGroup& group, const FailureNotes& notes)>;

/// Finds the ranks of a world that are on one host, and returns how its groups share memory.
/// Collective. Throws Error(RanksDisagree) if ranks were given different transports.
[[nodiscard]] ShareMemory meet_on_hosts(int rank, Transport transport,
                                        std::chrono::milliseconds timeout, AllGather all_gather);

}  // namespace sherd::detail
