#include "comm/shared_memory/meeting.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/shared_memory/hand_over.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

// Handing over takes milliseconds, once all have come; a rank that fails does not come.
constexpr std::chrono::seconds kPatience{10};

Deadline deadline_within(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kPatience);
}

// A model's region is made later, when no other way is open any more.
void check_limit_on_files() {
  rlimit limit{};
  const auto memory =
      static_cast<rlim_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < memory) {
    throw Error(ExitCode::Unavailable,
                "files may have up to " + std::to_string(limit.rlim_cur) +
                    " bytes here, and shared memory is one. Raise that limit (ulimit -f).");
  }
}

}  // namespace

// What a group shares: a region of a known size for numbers, and the file that a model's memory
// will lie in.
struct SharedMemoryMeeting::Regions {
  HandOverSocket socket;  ///< of the first rank
  SharedRegion numbers;
  SharedRegion data;
};

SharedMemoryMeeting::SharedMemoryMeeting(int rank, Transport transport,
                                         std::chrono::milliseconds timeout, AllGather all_gather)
    : rank_(rank), transport_(transport), timeout_(timeout), all_gather_(std::move(all_gather)) {
  const std::string mine = std::to_string(static_cast<int>(transport));
  const std::vector<std::string> all =
      all_gather_(mine + " " + RankPlace::of_this_process().to_text());
  for (size_t other = 0; other < all.size(); ++other) {
    const size_t space = all[other].find(' ');
    if (all[other].substr(0, space) != mine) {
      throw Error(ExitCode::RanksDisagree, "[World] rank " + std::to_string(other) +
                                               " was given another transport than rank " +
                                               std::to_string(rank_) +
                                               ": set WorldOptions::transport alike on all ranks.");
    }
    places_.push_back(RankPlace::from_text(all[other].substr(space + 1)));
  }
  const bool together = std::any_of(places_.begin(), places_.end(), [&](const RankPlace& place) {
    return std::count_if(places_.begin(), places_.end(),
                         [&](const RankPlace& other) { return place.shares_host_with(other); }) > 1;
  });
  if (transport == Transport::ProcessGroups || (transport == Transport::Automatic && !together)) {
    places_.clear();
  }
}

std::vector<RankPlace> SharedMemoryMeeting::places_of(const RankGroup& group) const {
  std::vector<RankPlace> places;
  for (int member = 0; member < group.size; ++member) {
    places.push_back(places_[static_cast<size_t>(group.rank_at(member))]);
  }
  return places;
}

// Those side by side with this rank in the group; this rank alone where hosts do not have the same
// number each.
RankGroup SharedMemoryMeeting::on_this_host(const RankGroup& group) const {
  const std::vector<RankPlace> places = places_of(group);
  const auto host_of = [&](int member) -> const RankPlace& {
    return places[static_cast<size_t>(member)];
  };
  int host_size = 1;
  while (host_size < group.size && host_of(host_size).shares_host_with(host_of(0))) {
    ++host_size;
  }
  const RankGroup alone{rank_, group.stride, 1};
  for (int member = 0; member < group.size; ++member) {
    for (int other = 0; other < member; ++other) {
      const bool same_block = member / host_size == other / host_size;
      if (same_block != host_of(member).shares_host_with(host_of(other))) {
        return alone;
      }
    }
  }
  if (group.size % host_size != 0) {
    return alone;
  }
  const int first = group.index_of(rank_) / host_size * host_size;
  return {group.rank_at(first), group.stride, host_size};
}

void SharedMemoryMeeting::hand_over_regions(Regions& regions, const RankGroup& group) const {
  std::vector<int64_t> processes;
  for (const RankPlace& place : places_of(group)) {
    if (place.process != places_[static_cast<size_t>(rank_)].process) {
      processes.push_back(place.process);
    }
  }
  hand_over(regions.socket, processes, {regions.numbers.file(), regions.data.file()},
            deadline_within(timeout_));
}

SharedMemoryMeeting::Regions SharedMemoryMeeting::take_over_regions(const std::string& name,
                                                                    const RankGroup& group) const {
  const RankPlace& first = places_[static_cast<size_t>(group.first)];
  std::vector<launch::FileDescriptor> files =
      take_over(name, first.process, 2, deadline_within(timeout_));
  return {{}, SharedRegion(std::move(files[0])), SharedRegion(std::move(files[1]))};
}

// A rank that cannot see another would take it for dead.
void SharedMemoryMeeting::enter(Regions& regions, const RankGroup& group) const {
  const std::vector<RankPlace> places = places_of(group);
  for (int member = 0; member < group.size; ++member) {
    if (!places[static_cast<size_t>(member)].is_alive()) {
      throw Error(ExitCode::Unavailable, "the process of rank " +
                                             std::to_string(group.rank_at(member)) +
                                             " is not visible in /proc.");
    }
  }
  regions.numbers.map(SharedGroup::region_bytes(group.size));
}

std::string SharedMemoryMeeting::fault_among(const std::vector<std::string>& faults,
                                             const RankGroup& group) const {
  for (int member = 0; member < group.size; ++member) {
    const int rank = group.rank_at(member);
    if (!faults[static_cast<size_t>(rank)].empty()) {
      return "rank " + std::to_string(rank) + ": " + faults[static_cast<size_t>(rank)];
    }
  }
  return "";
}

void SharedMemoryMeeting::refuse_or_warn(const std::string& fault, const RankGroup& group) const {
  const std::string ranks = "ranks " + std::to_string(group.first) + " to " +
                            std::to_string(group.rank_at(group.size - 1));
  if (transport_ == Transport::SharedMemory) {
    throw Error(ExitCode::Unavailable,
                "[World] " + ranks + " cannot share memory: " + fault +
                    " WorldOptions::transport = Transport::Automatic exchanges over process groups "
                    "there.");
  }
  if (rank_ == group.first && on_this_host(group).size > 1) {
    TORCH_WARN_ONCE("[World] ", ranks,
                    " of this host exchange over process groups, since they cannot "
                    "share memory: ",
                    fault);
  }
}

std::optional<HostMemory> SharedMemoryMeeting::share(const RankGroup& group,
                                                     const Roster& roster) const {
  if (places_.empty()) {
    return std::nullopt;
  }
  const RankGroup here = on_this_host(group);
  const bool is_asked_for = transport_ == Transport::SharedMemory;
  const bool shares = here.size > 1 && (here.size == group.size || !is_asked_for);
  const bool leads = shares && rank_ == here.first;
  Regions regions;
  std::string fault =
      shares || group.size == 1 || !is_asked_for ? "" : "they are on several hosts.";
  const auto attempt = [&](const auto& step) {
    try {
      if (shares && fault.empty()) {
        step();
      }
    } catch (const Error& error) {
      fault = error.what();
    }
  };
  attempt([&] {
    if (leads) {
      check_limit_on_files();
      regions = {open_hand_over(), SharedRegion::make(), SharedRegion::make()};
      regions.numbers.set_size(SharedGroup::region_bytes(here.size));
    }
  });
  // Each first rank's name; empty where it has nothing to hand over.
  const std::vector<std::string> names = all_gather_(fault.empty() ? regions.socket.name : "");
  const std::string& name = names[static_cast<size_t>(here.first)];
  attempt([&] {
    if (leads) {
      hand_over_regions(regions, here);
    } else if (!name.empty()) {
      regions = take_over_regions(name, here);
    }
  });
  attempt([&] {
    if (!name.empty()) {
      check_limit_on_files();
      enter(regions, here);
    }
  });
  fault = fault_among(all_gather_(fault), group);
  if (!fault.empty()) {
    refuse_or_warn(fault, group);
    return std::nullopt;
  }
  if (!shares) {
    return std::nullopt;
  }
  const RankPlace& place = places_[static_cast<size_t>(rank_)];
  const auto host_ranks =
      std::count_if(places_.begin(), places_.end(),
                    [&](const RankPlace& other) { return place.shares_host_with(other); });
  return HostMemory{std::make_unique<SharedGroup>(
                        std::move(regions.numbers),
                        SharedGroupOptions{here, here.index_of(rank_), places_of(here),
                                           static_cast<int>(host_ranks), timeout_, roster}),
                    std::move(regions.data)};
}

}  // namespace sherd::detail
