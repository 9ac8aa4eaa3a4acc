#include "rendezvous/network.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>

#include "files/quiet_thread.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;

// A name that the system knows is known within moments.
constexpr std::chrono::seconds kLongLookup{4};
constexpr std::chrono::milliseconds kBetweenLooksAtNames{10};

[[noreturn]] void unavailable(const std::string& what) {
  throw Error(ExitCode::Unavailable, what);
}

Resolved ask(const Resolver& resolver, const std::string& host, std::uint16_t port, int socket_type,
             int flags) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socket_type;
  addrinfo* list = nullptr;
  const int failure = resolver(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  Resolved found;
  if (failure != 0) {
    found.fault = gai_strerror(failure);
  } else {
    found.addresses.reset(list);
  }
  return found;
}

// Of rank 0's host. Throws Error(Unavailable) where the name does not resolve.
Lookup resolve(const std::string& host, std::uint16_t port, int socket_type) {
  Lookup lookup = look_up(host, port, socket_type);
  if (lookup.wait_for(kLongLookup) != std::future_status::ready) {
    TORCH_WARN("[World] the name '", host, "' of rank 0's host is still being looked up here. If ",
               "it stays so: set MASTER_ADDR to an address, or look at this host's resolver.");
  }
  if (const std::string& fault = lookup.get().fault; !fault.empty()) {
    unavailable("cannot resolve the address '" + host + "' of rank 0: " + fault +
                ". Set MASTER_ADDR to a name or address that every host knows.");
  }
  return lookup;
}

// None where that fails, and then `error` says why.
files::FileDescriptor listening_socket(const addrinfo& address, int& error) {
  files::FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd.get() < 0 || bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    error = errno;
    return {};
  }
  return fd;
}

// All zero where there is none.
sockaddr_storage bound_address(int socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  getsockname(socket, reinterpret_cast<sockaddr*>(&name), &size);
  return name;
}

// 0 where the address is not one of the internet.
std::uint16_t port_in(const sockaddr_storage& name) {
  return name.ss_family == AF_INET6  ? ntohs(reinterpret_cast<const sockaddr_in6&>(name).sin6_port)
         : name.ss_family == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in&>(name).sin_port)
                                     : std::uint16_t{0};
}

// This host's numeric address on the way to another; empty where there is no way, and then `error`
// says why.
std::string own_address_towards(const addrinfo& address, int& error) {
  const files::FileDescriptor fd(socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket sends nothing; it only chooses the route.
  if (fd.get() < 0 || connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    error = errno;
    return "";
  }
  return address_of(fd.get());
}

std::vector<int> open_descriptors() {
  std::vector<int> found;
  std::error_code fault;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", fault)) {
    found.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return found;
}

// A socket may get the very port that it dials as its own, if nobody listens there.
bool is_connected_to_itself(int socket) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_size = sizeof own;
  socklen_t other_size = sizeof other;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
         own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
}

/// A connection to one address, which may be under way.
struct Attempt {
  explicit Attempt(const addrinfo& to)
      : address(numeric_address(to.ai_addr, to.ai_addrlen)),
        socket(::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    if (socket.get() >= 0 && connect(socket.get(), to.ai_addr, to.ai_addrlen) == 0) {
      end(0);
    } else if (errno != EINPROGRESS) {
      end(errno);
    }
  }
  void look() {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    end(error);
  }
  void end(int error) {
    under_way = false;
    error = error == 0 && is_connected_to_itself(socket.get()) ? ECONNREFUSED : error;
    fault = error == 0 ? "" : std::strerror(error);
  }
  [[nodiscard]] bool has_answered() const { return fault.empty(); }

  std::string address;
  files::FileDescriptor socket;
  bool under_way = true;
  std::string fault = "no answer";
};

bool is_ready(const Lookup& lookup) {
  return lookup.valid() && lookup.wait_for(Clock::duration(0)) == std::future_status::ready;
}

/// Connections to all addresses of one endpoint; to none while its name is being looked up.
struct Call {
  explicit Call(Lookup of) : lookup(std::move(of)) {}
  /// Connects once the name has been looked up.
  void advance() {
    if (has_begun || !is_ready(lookup)) {
      return;
    }
    has_begun = true;
    for (const addrinfo* one = lookup.get().addresses.get(); one != nullptr; one = one->ai_next) {
      attempts.emplace_back(*one);
    }
  }
  /// The attempts to wait for: none once one has answered.
  [[nodiscard]] std::vector<Attempt*> under_way() {
    std::vector<Attempt*> waiting;
    for (Attempt& attempt : attempts) {
      if (attempt.has_answered()) {
        return {};
      }
      if (attempt.under_way) {
        waiting.push_back(&attempt);
      }
    }
    return waiting;
  }
  [[nodiscard]] Dialled result() const {
    if (!has_begun) {
      return {"", "the name is still being looked up"};
    }
    if (attempts.empty()) {
      return {"", "the name does not resolve: " + lookup.get().fault};
    }
    const std::string& first = attempts.front().fault;
    bool alike = true;
    Dialled all;
    for (const Attempt& one : attempts) {
      if (one.has_answered()) {
        return {one.address, ""};
      }
      alike = alike && one.fault == first;
      all.address += (all.address.empty() ? "" : ", ") + one.address;
      all.fault += (all.fault.empty() ? "" : "; ") + one.address + ": " + one.fault;
    }
    return {all.address, alike ? first : all.fault};
  }

  Lookup lookup;
  bool has_begun = false;
  std::vector<Attempt> attempts = {};
};

// Waits until an attempt ends or `deadline` passes, and looks after names meanwhile. False if there
// is nothing to wait for.
bool wait_for_news(std::vector<Call>& calls, Clock::time_point deadline) {
  std::vector<pollfd> events;
  std::vector<Attempt*> waiting;
  bool looks_up = false;
  for (Call& call : calls) {
    call.advance();
    looks_up = looks_up || !call.has_begun;
    for (Attempt* const attempt : call.under_way()) {
      events.push_back({attempt->socket.get(), POLLOUT, 0});
      waiting.push_back(attempt);
    }
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  if (!waiting.empty() || looks_up) {
    const auto limit = looks_up ? std::min(left, kBetweenLooksAtNames) : left;
    poll(events.data(), events.size(), static_cast<int>(std::max<long>(0, limit.count())));
  }
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].revents != 0) {
      waiting[i]->look();
    }
  }
  return !waiting.empty() || looks_up;
}

}  // namespace

Lookup look_up(const std::string& host, std::uint16_t port, int socket_type,
               const Resolver& resolver) {
  std::promise<Resolved> promise;
  Lookup lookup = promise.get_future().share();
  if (Resolved numeric = ask(&getaddrinfo, host, port, socket_type, AI_NUMERICHOST);
      numeric.addresses != nullptr) {
    promise.set_value(std::move(numeric));  // an address is no name, and needs no thread
    return lookup;
  }
  auto on_a_thread = [=, promise = std::move(promise)]() mutable {
    promise.set_value(ask(resolver, host, port, socket_type, 0));
  };
  files::start_quiet_thread(std::move(on_a_thread)).detach();
  return lookup;
}

std::string numeric_address(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = getnameinfo(address, size, text.data(), static_cast<socklen_t>(text.size()),
                                  nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? text.data() : "";
}

int listen_on(const std::string& host, std::uint16_t port) {
  const std::string place = host + ":" + std::to_string(port);
  const Lookup lookup = resolve(host, port, SOCK_STREAM);
  int error = 0;
  const addrinfo* one = lookup.get().addresses.get();
  for (; one != nullptr && error != EADDRINUSE; one = one->ai_next) {
    files::FileDescriptor fd = listening_socket(*one, error);
    if (fd.get() >= 0) {
      return fd.release();
    }
  }
  if (error == EADDRINUSE) {
    unavailable(
        "port in use: " + place +
        " is taken by another process. Set MASTER_PORT to a free port, or end the other run.");
  }
  unavailable("cannot listen on " + place + ": " + std::strerror(error) +
              ". Rank 0 must run on the host that MASTER_ADDR names.");
}

std::string address_of(int socket) {
  const sockaddr_storage bound = bound_address(socket);
  return numeric_address(reinterpret_cast<const sockaddr*>(&bound), sizeof bound);
}

std::uint16_t port_of(int socket) {
  return port_in(bound_address(socket));
}

void set_admitting(int listening_socket, bool admits) {
  // Drops every packet: connection attempts get no answer.
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop_all};
  if (admits) {
    setsockopt(listening_socket, SOL_SOCKET, SO_DETACH_FILTER, &program, sizeof program);
  } else {
    setsockopt(listening_socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  }
}

std::vector<int> listening_sockets() {
  std::vector<int> found;
  for (const int fd : open_descriptors()) {
    int listens = 0;
    int family = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family != AF_UNIX) {
      found.push_back(fd);
    }
  }
  return found;
}

void limit_connections_to(std::uint16_t port, std::chrono::milliseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const auto rest = std::chrono::duration_cast<std::chrono::microseconds>(limit - seconds);
  const timeval time{seconds.count(), rest.count()};
  for (const int fd : open_descriptors()) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && port_in(peer) == port) {
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    }
  }
}

std::string local_address_towards(const std::string& host, std::uint16_t port) {
  const Lookup lookup = resolve(host, port, SOCK_DGRAM);
  int error = 0;
  for (const addrinfo* one = lookup.get().addresses.get(); one != nullptr; one = one->ai_next) {
    std::string own = own_address_towards(*one, error);
    if (!own.empty()) {
      return own;
    }
  }
  unavailable("no route to '" + host + "', the host of rank 0: " + std::strerror(error));
}

std::string with_interface(const std::string& address) {
  std::string name;
  ifaddrs* all = nullptr;
  static_cast<void>(::getifaddrs(&all));
  for (const ifaddrs* one = all; one != nullptr && name.empty(); one = one->ifa_next) {
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if ((family == AF_INET || family == AF_INET6) &&
        numeric_address(one->ifa_addr, size) == address) {
      name = one->ifa_name;
    }
  }
  ::freeifaddrs(all);
  return name.empty() ? address : name + " (" + address + ")";
}

std::vector<Dialled> Dialler::dial(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (!lookups_[i].valid() || is_ready(lookups_[i])) {  // the addresses of a name may change
      lookups_[i] = look_up(endpoints_[i].host, endpoints_[i].port, SOCK_STREAM, resolver_);
    }
  }
  std::vector<Call> calls(lookups_.begin(), lookups_.end());
  while (wait_for_news(calls, deadline) && Clock::now() < deadline) {
  }
  std::vector<Dialled> results;
  for (const Call& call : calls) {
    results.push_back(call.result());
  }
  return results;
}

std::string to_text(const Endpoint& endpoint, const Dialled& dialled) {
  const bool named = !dialled.address.empty() && dialled.address != endpoint.host;
  return endpoint.host + ":" + std::to_string(endpoint.port) +
         (named ? ", which is " + dialled.address + " here" : "") +
         (dialled.fault.empty() ? "" : ": " + dialled.fault);
}

AnsweringSocket::AnsweringSocket(const std::string& host)
    : listening_(listen_on(host, 0)), stop_(launch::make_pipe()) {
  launch::set_non_blocking(listening_.get());
  try {
    thread_ = files::start_quiet_thread([this] { answer(); });
  } catch (const std::system_error& error) {
    unavailable(std::string("no thread can be started to answer other hosts: ") + error.what());
  }
}

void AnsweringSocket::answer() const {
  std::array<pollfd, 2> events{{{listening_.get(), POLLIN, 0}, {stop_.read_end.get(), POLLIN, 0}}};
  while (events[1].revents == 0) {
    poll(events.data(), events.size(), -1);
    const files::FileDescriptor caller(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
}

}  // namespace sherd::detail
