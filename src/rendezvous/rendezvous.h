#pragma once
// Where the ranks of a job meet.

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "launch/rank_environment.h"
#include "sherd/error.h"

namespace sherd::detail {

struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  /// Numeric: the one of the store's addresses that answered this rank; on rank 0, where it
  /// listens.
  std::string address;
};

/// The store of the job, on rank 0 or with torchrun's agent, once all ranks have come. Collective.
/// With `closes_store`, rank 0 then accepts no further connection to it. Warns after four seconds
/// of waiting (half the timeout if that is less), naming the ranks that have not come. Throws
/// Error: PeerLost, naming the ranks, where some do not come within `timeout` or a process of this
/// host that came has ended; Unavailable for a port or address that is not available; RanksDisagree
/// where ranks are of several versions. A rank with another job secret has not come; the warning
/// and the error say that of it.
[[nodiscard]] Rendezvous meet(const launch::RankEnvironment& environment,
                              std::chrono::milliseconds timeout, bool closes_store,
                              const Version& version = kVersion);

}  // namespace sherd::detail
