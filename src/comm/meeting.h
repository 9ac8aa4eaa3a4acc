#pragma once
// How ranks of one host find out that they can share memory, and set it up.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/rank_place.h"
#include "comm/shared_memory.h"

namespace sherd::detail {

/// Sets up shared memory for the groups of a world, whose ranks agree on it over its control group.
class SharedMemoryMeeting {
 public:
  /// Returns each rank's text, by rank; a collective of the world.
  using AllGather = std::function<std::vector<std::string>(const std::string&)>;

  /// Collective. Throws Error(RanksDisagree) if ranks were given different transports.
  SharedMemoryMeeting(int rank, Transport transport, std::chrono::milliseconds timeout,
                      AllGather all_gather);

  /// Returns memory for the ranks of the group on this host: all of them, or consecutive ones, as
  /// many as on each of its other hosts. Returns nothing, on all ranks of the group, if that is not
  /// so or if some ranks cannot share memory. Throws Error(Unavailable) if the transport is
  /// SharedMemory and they are not all on this host. Collective over the world.
  [[nodiscard]] std::optional<HostMemory> share(const RankGroup& group,
                                                const FailureNotes& notes) const;

 private:
  [[nodiscard]] std::vector<RankPlace> places_of(const RankGroup& group) const;
  [[nodiscard]] RankGroup on_this_host(const RankGroup& group) const;
  void refuse_or_warn(const std::string& fault, const RankGroup& group) const;

  int rank_;
  Transport transport_;
  std::chrono::milliseconds timeout_;
  AllGather all_gather_;
  std::vector<RankPlace> places_;             ///< by rank; empty if no ranks share memory
  std::map<std::string, int> ranks_of_host_;  ///< hosts by their name in RankPlace
};

}  // namespace sherd::detail
