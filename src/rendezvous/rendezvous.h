#pragma once
// How the ranks of a job meet, and whether their hosts reach each other.

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "launch/rank_environment.h"
#include "sherd/error.h"

namespace sherd::detail {

struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  /// Numeric: the store's address that answered this rank; on rank 0, where it listens.
  std::string address;
};

/// Returns the store of the job, on rank 0 or with torchrun's agent, once all ranks have come.
/// Collective. With `closes_store`, rank 0 then accepts no further connection to it. Warns after
/// four seconds (half the timeout if that is less), naming the ranks that have not come. Throws
/// Error: PeerLost, naming the ranks, if some do not come within `timeout`, have another job
/// secret, or have ended on this host; Unavailable for a port or address that is not available;
/// RanksDisagree if ranks are of several versions.
[[nodiscard]] Rendezvous meet(const launch::RankEnvironment& environment,
                              std::chrono::milliseconds timeout, bool closes_store,
                              const Version& version = kVersion);

/// Checks that the hosts of a world reach each other. The first rank of each host listens on
/// `own_address`, where this host's ranks will, and tries to connect to the others' addresses.
/// Collective over all ranks that have met in `store`. Throws on all ranks alike:
/// Error(Unavailable), naming who cannot reach which address, after some four seconds;
/// Error(PeerLost) if a rank says nothing for `timeout` or a minute.
void check_reachable(c10d::Store& store, const launch::RankEnvironment& environment,
                     const std::string& own_address, std::chrono::milliseconds timeout);

}  // namespace sherd::detail
