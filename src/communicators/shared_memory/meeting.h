#pragma once
// How ranks of one host find out that they can share memory, and set it up.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "communicators/roster.h"
#include "communicators/shared_memory/group.h"
#include "communicators/shared_memory/rank_place.h"

namespace sherd::detail {

/// Makes communicators in shared memory for the groups of a world, whose ranks agree on it over its
/// control group.
class SharedMemoryMeeting {
 public:
  /// Each rank's text, by rank; a collective of the world.
  using AllGather = std::function<std::vector<std::string>(const std::string&)>;

  /// Collective. Throws Error(RanksDisagree) where ranks were given different transports.
  SharedMemoryMeeting(int rank, Transport transport, std::chrono::milliseconds timeout,
                      AllGather all_gather);

  /// Null where the ranks of the group are on several hosts or cannot share memory, and so use
  /// process groups; the same on all of them. Throws Error(Unavailable) there if the transport is
  /// SharedMemory. Collective over the world, also where groups differ.
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group,
                                                                const Roster& roster) const;

 private:
  struct Regions;
  [[nodiscard]] std::vector<RankPlace> places_of(const RankGroup& group) const;
  [[nodiscard]] bool on_one_host(const RankGroup& group) const;
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
