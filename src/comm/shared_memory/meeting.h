#pragma once
// How ranks of one host find out that they can share memory, and set it up.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/roster.h"
#include "comm/shared_memory/group.h"
#include "comm/shared_memory/rank_place.h"

namespace sherd::detail {

/// What the ranks of a group that are on this host share.
struct HostMemory {
  std::unique_ptr<SharedGroup> group;  ///< of these ranks
  SharedRegion data;                   ///< a file that all of them have, without a size yet
};

/// Sets up shared memory for the groups of a world, whose ranks agree on it over its control group.
class SharedMemoryMeeting {
 public:
  /// Each rank's text, by rank; a collective of the world.
  using AllGather = std::function<std::vector<std::string>(const std::string&)>;

  /// Collective. Throws Error(RanksDisagree) where ranks were given different transports.
  SharedMemoryMeeting(int rank, Transport transport, std::chrono::milliseconds timeout,
                      AllGather all_gather);

  /// For the ranks of the group on this host: all of them, or as many as on each of its other
  /// hosts, side by side. Nothing where hosts have one rank of it or not the same number, or where
  /// some cannot share memory; the same on all ranks of the group. Throws Error(Unavailable) where
  /// the transport is SharedMemory and they are not all on this host. Collective over the world,
  /// also where groups differ.
  [[nodiscard]] std::optional<HostMemory> share(const RankGroup& group, const Roster& roster) const;

 private:
  struct Regions;
  [[nodiscard]] std::vector<RankPlace> places_of(const RankGroup& group) const;
  [[nodiscard]] RankGroup on_this_host(const RankGroup& group) const;
  void hand_over_regions(Regions& regions, const RankGroup& group) const;
  [[nodiscard]] Regions take_over_regions(const std::string& name, const RankGroup& group) const;
  void enter(Regions& regions, const RankGroup& group) const;
  void refuse_or_warn(const std::string& fault, const RankGroup& group) const;
  [[nodiscard]] std::string fault_among(const std::vector<std::string>& faults,
                                        const RankGroup& group) const;

  int rank_;
  Transport transport_;
  std::chrono::milliseconds timeout_;
  AllGather all_gather_;
  std::vector<RankPlace> places_;  ///< by rank; empty where nobody is to share memory
};

}  // namespace sherd::detail
