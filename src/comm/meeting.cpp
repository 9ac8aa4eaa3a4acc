#include "comm/meeting.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "launch/random_hex.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

using launch::FileDescriptor;
using Deadline = std::chrono::steady_clock::time_point;

// Handing over takes milliseconds once all ranks are there; a rank that fails does not come.
constexpr std::chrono::seconds kHandOverPatience{10};
constexpr size_t kFiles = 2;  // of a group: its numbers and its data
// The ancillary buffer of a message has no room for one more.
static_assert(CMSG_SPACE(kFiles * sizeof(int)) - CMSG_LEN(0) == kFiles * sizeof(int));
constexpr size_t kRandomBytes = 16;  // of a name

Deadline deadline_within(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() +
         std::min<std::chrono::milliseconds>(timeout, kHandOverPatience);
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

[[noreturn]] void hand_over_failed(const std::string& what) {
  throw Error(ExitCode::Unavailable, what + ": " + std::strerror(errno) + ".");
}

FileDescriptor unix_socket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) {
    hand_over_failed("cannot open a Unix socket");
  }
  return fd;
}

// A path that begins with a zero byte is a name and no file.
struct AbstractAddress {
  explicit AbstractAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
};

void wait_readable(int fd, const std::string& what, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready > 0) {
      return;
    }
    if (ready == 0) {
      throw Error(ExitCode::Unavailable, what + ": no process connected in time.");
    }
    if (errno != EINTR) {
      hand_over_failed(what);
    }
  }
}

int64_t process_at(const FileDescriptor& connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    hand_over_failed("cannot identify the process at the other end of a Unix socket");
  }
  return peer.pid;
}

// One byte, with the files as ancillary data.
struct Parcel {
  Parcel() {
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = margin.data();
    message.msg_controllen = margin.size();
  }
  char byte = 'f';
  iovec content{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFiles * sizeof(int))> margin{};
  msghdr message{};
};

void send_files(const FileDescriptor& connection, const std::array<int, kFiles>& files) {
  Parcel parcel;
  cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
  if (sendmsg(connection.get(), &parcel.message, MSG_NOSIGNAL) != 1) {
    hand_over_failed("handing over shared memory failed");
  }
}

std::vector<FileDescriptor> receive_files(const FileDescriptor& connection) {
  Parcel parcel;
  if (recvmsg(connection.get(), &parcel.message, MSG_CMSG_CLOEXEC) < 0) {
    hand_over_failed("taking over shared memory failed");
  }
  std::vector<FileDescriptor> files;
  const cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::array<int, kFiles> numbers{};
    const size_t found = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::memcpy(numbers.data(), CMSG_DATA(header), found * sizeof(int));
    for (size_t i = 0; i < found; ++i) {
      files.emplace_back(numbers[i]);
    }
  }
  if (files.size() != kFiles) {
    throw Error(ExitCode::Unavailable,
                "taking over shared memory received " + std::to_string(files.size()) + " of " +
                    std::to_string(kFiles) + " files: raise the limit on open files (ulimit -n).");
  }
  return files;
}

// The first fault among the ranks of a group; empty if there is none. `faults`: of the whole world.
std::string fault_among(const std::vector<std::string>& faults, const RankGroup& group) {
  for (int member = 0; member < group.size; ++member) {
    const int rank = group.rank_at(member);
    if (!faults[static_cast<size_t>(rank)].empty()) {
      return "rank " + std::to_string(rank) + ": " + faults[static_cast<size_t>(rank)];
    }
  }
  return "";
}

// The files of a group: a region of a known size for numbers, and the file for a model's memory.
struct Regions {
  // The first rank's, on which it waits for processes of this host (an abstract Unix socket).
  FileDescriptor socket;
  std::string name;
  SharedRegion numbers;
  SharedRegion data;

  // All of these throw Error(Unavailable).
  [[nodiscard]] static Regions make(int size) {
    Regions regions{unix_socket(), "sherd-" + launch::random_hex(kRandomBytes),
                    SharedRegion::make(), SharedRegion::make()};
    const AbstractAddress address(regions.name);
    if (bind(regions.socket.get(), address.get(), address.size) != 0 ||
        listen(regions.socket.get(), SOMAXCONN) != 0) {
      hand_over_failed("cannot bind a Unix socket");
    }
    regions.numbers.set_size(SharedGroup::region_bytes(size));
    return regions;
  }
};

// To the other processes of the group, and to no others.
void hand_over(const Regions& regions, const std::vector<RankPlace>& places, Deadline deadline) {
  std::vector<int64_t> awaited;
  for (const RankPlace& place : places) {
    if (place.process != places.front().process) {
      awaited.push_back(place.process);
    }
  }
  while (!awaited.empty()) {
    wait_readable(regions.socket.get(), "handing over shared memory", deadline);
    const FileDescriptor connection(accept4(regions.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() < 0) {
      hand_over_failed("handing over shared memory failed");
    }
    if (std::erase(awaited, process_at(connection)) > 0) {
      send_files(connection, {regions.numbers.file(), regions.data.file()});
    }
  }
}

Regions take_over(const std::string& name, const RankPlace& first, Deadline deadline) {
  const FileDescriptor connection = unix_socket();
  const AbstractAddress address(name);
  if (connect(connection.get(), address.get(), address.size) != 0) {
    hand_over_failed("taking over shared memory failed");
  }
  if (process_at(connection) != first.process) {
    throw Error(ExitCode::Unavailable,
                "a process that is not the first rank of the group answered.");
  }
  wait_readable(connection.get(), "taking over shared memory", deadline);
  std::vector<FileDescriptor> files = receive_files(connection);
  return {{}, {}, SharedRegion(std::move(files[0])), SharedRegion(std::move(files[1]))};
}

// Checks that this rank sees the others: it would take one that it cannot see for dead.
void check_visible(const std::vector<RankPlace>& places, const RankGroup& group) {
  for (int member = 0; member < group.size; ++member) {
    if (!places[static_cast<size_t>(member)].is_alive()) {
      throw Error(ExitCode::Unavailable, "the process of rank " +
                                             std::to_string(group.rank_at(member)) +
                                             " is not visible in /proc.");
    }
  }
}

/// Sets up shared memory for the groups of a world, whose ranks agree on it over its control group.
class SharedMemoryMeeting {
 public:
  SharedMemoryMeeting(int rank, Transport transport, std::chrono::milliseconds timeout,
                      AllGather all_gather)
      : rank_(rank), transport_(transport), timeout_(timeout), all_gather_(std::move(all_gather)) {
    const std::string mine = std::to_string(static_cast<int>(transport));
    const std::vector<std::string> all =
        all_gather_(mine + " " + RankPlace::of_this_process().to_text());
    for (size_t other = 0; other < all.size(); ++other) {
      const size_t space = all[other].find(' ');
      if (all[other].substr(0, space) != mine) {
        throw Error(ExitCode::RanksDisagree,
                    "[World] rank " + std::to_string(other) +
                        " was given another transport than rank " + std::to_string(rank_) +
                        ": set WorldOptions::transport alike on all ranks.");
      }
      places_.push_back(RankPlace::from_text(all[other].substr(space + 1)));
    }
    for (const RankPlace& place : places_) {
      if (!place.host.empty()) {
        ++ranks_of_host_[place.host];
      }
    }
    const bool share_a_host =
        std::ranges::any_of(ranks_of_host_, [](const auto& host) { return host.second > 1; });
    if (transport == Transport::ProcessGroups ||
        (transport == Transport::Automatic && !share_a_host)) {
      places_.clear();
    }
  }

  [[nodiscard]] std::optional<HostMemory> share(const RankGroup& group,
                                                const FailureNotes& notes) const {
    if (places_.empty()) {
      return std::nullopt;
    }
    const RankGroup here = on_this_host(group);
    const bool is_asked_for = transport_ == Transport::SharedMemory;
    const bool shares = here.size > 1 && (here.size == group.size || !is_asked_for);
    const bool leads = shares && rank_ == here.first;
    const std::vector<RankPlace> places = places_of(here);
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
        regions = Regions::make(here.size);
      }
    });
    // Each first rank's name; empty if it has nothing to hand over.
    const std::vector<std::string> names = all_gather_(fault.empty() ? regions.name : "");
    const std::string& name = names[static_cast<size_t>(here.first)];
    attempt([&] {
      if (leads) {
        hand_over(regions, places, deadline_within(timeout_));
      } else if (!name.empty()) {
        regions = take_over(name, places.front(), deadline_within(timeout_));
      }
    });
    attempt([&] {
      if (!name.empty()) {
        check_limit_on_files();
        check_visible(places, here);
        regions.numbers.map(SharedGroup::region_bytes(here.size));
      }
    });
    fault = fault_among(all_gather_(fault), group);
    if (!fault.empty()) {
      refuse_or_warn(fault, group);
    }
    if (!fault.empty() || !shares) {
      return std::nullopt;
    }
    const int host_ranks = ranks_of_host_.at(places.front().host);
    return HostMemory{
        std::make_unique<SharedGroup>(std::move(regions.numbers),
                                      SharedGroupOptions{here, places, host_ranks, notes}),
        std::move(regions.data)};
  }

 private:
  [[nodiscard]] std::vector<RankPlace> places_of(const RankGroup& group) const {
    std::vector<RankPlace> places;
    for (int member = 0; member < group.size; ++member) {
      places.push_back(places_[static_cast<size_t>(group.rank_at(member))]);
    }
    return places;
  }
  // This host's ranks of the group; this rank alone unless the hosts' ranks are blocks of one size.
  [[nodiscard]] RankGroup on_this_host(const RankGroup& group) const {
    const std::vector<RankPlace> places = places_of(group);
    const auto other_host = std::ranges::find_if_not(
        places.begin() + 1, places.end(),
        [&](const RankPlace& place) { return place.shares_host_with(places.front()); });
    const auto host_size = static_cast<int>(other_host - places.begin());
    const RankGroup alone{rank_, group.stride, 1};
    if (group.size % host_size != 0) {
      return alone;
    }
    std::set<std::string> hosts;  // of earlier blocks
    for (size_t member = 0; member < places.size(); ++member) {
      const RankPlace& place = places[member];
      const bool begins_block = member % static_cast<size_t>(host_size) == 0;
      const bool is_in_place = begins_block ? place.host.empty() || hosts.insert(place.host).second
                                            : place.shares_host_with(places[member - 1]);
      if (!is_in_place) {
        return alone;
      }
    }
    const int first = group.index_of(rank_) / host_size * host_size;
    return {group.rank_at(first), group.stride, host_size};
  }
  void refuse_or_warn(const std::string& fault, const RankGroup& group) const {
    const std::string ranks = "ranks " + std::to_string(group.first) + " to " +
                              std::to_string(group.rank_at(group.size - 1));
    if (transport_ == Transport::SharedMemory) {
      throw Error(
          ExitCode::Unavailable,
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

  int rank_;
  Transport transport_;
  std::chrono::milliseconds timeout_;
  AllGather all_gather_;
  std::vector<RankPlace> places_;             ///< by rank; empty if no ranks share memory
  std::map<std::string, int> ranks_of_host_;  ///< hosts by their name in RankPlace
};

}  // namespace

ShareMemory meet_on_hosts(int rank, Transport transport, std::chrono::milliseconds timeout,
                          AllGather all_gather) {
  return [meeting = std::make_shared<SharedMemoryMeeting>(
              rank, transport, timeout, std::move(all_gather))](const RankGroup& group,
                                                                const FailureNotes& notes) {
    return meeting->share(group, notes);
  };
}

}  // namespace sherd::detail
