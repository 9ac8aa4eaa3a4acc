#include "rendezvous/network.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <c10/util/Exception.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "files/file_descriptor.h"
#include "rendezvous/lookup.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

// A name that the system knows is known within moments.
constexpr std::chrono::seconds kLongLookup{4};

[[noreturn]] void unavailable(const std::string& what) {
  throw Error(ExitCode::Unavailable, what);
}

Lookup resolve(const std::string& host, std::uint16_t port, int socket_type) {
  Lookup lookup(host, port, socket_type);
  if (!lookup.ends_before(std::chrono::steady_clock::now() + kLongLookup)) {
    TORCH_WARN("[World] the name '", host, "' of rank 0's host is still being looked up here. If ",
               "it stays so: set MASTER_ADDR to an address, or look at this host's resolver.");
  }
  if (!lookup.fault().empty()) {
    unavailable("cannot resolve the address '" + host + "' of rank 0: " + lookup.fault() +
                ". Set MASTER_ADDR to a name or address that every host knows.");
  }
  return lookup;
}

// Negative with errno where that fails.
int listening_socket(const addrinfo& address) {
  files::FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens = fd.get() >= 0 && bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 &&
                       listen(fd.get(), SOMAXCONN) == 0;
  const int error = errno;
  const int result = listens ? fd.release() : -1;
  fd.close();
  errno = error;
  return result;
}

// All zero where there is none.
sockaddr_storage name_of(int socket) {
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

// This host's numeric address on the way to another; empty with errno where there is no way.
std::string own_address_towards(const addrinfo& address) {
  files::FileDescriptor fd(socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket sends nothing; it only chooses the route.
  const bool routed = fd.get() >= 0 && connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
  const int error = errno;
  std::string own = routed ? address_of(fd.get()) : "";
  fd.close();
  errno = error;
  return own;
}

}  // namespace

int listen_on(const std::string& host, std::uint16_t port) {
  const std::string place = host + ":" + std::to_string(port);
  const Lookup lookup = resolve(host, port, SOCK_STREAM);
  int error = 0;
  const addrinfo* one = lookup.addresses();
  for (; one != nullptr && error != EADDRINUSE; one = one->ai_next) {
    const int fd = listening_socket(*one);
    if (fd >= 0) {
      return fd;
    }
    error = errno;
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
  const sockaddr_storage bound = name_of(socket);
  return numeric_address(reinterpret_cast<const sockaddr*>(&bound), sizeof bound);
}

std::uint16_t port_of(int socket) {
  return port_in(name_of(socket));
}

void set_admitting(int listening_socket, bool admits) {
  // A filter of one instruction that drops every packet: connection attempts get no answer.
  // Connections that were accepted before have filters of their own.
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
  std::error_code fault;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", fault)) {
    const int fd = std::atoi(entry.path().filename().c_str());
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
  std::error_code fault;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", fault)) {
    const int fd = std::atoi(entry.path().filename().c_str());
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
  for (const addrinfo* one = lookup.addresses(); one != nullptr; one = one->ai_next) {
    std::string own = own_address_towards(*one);
    if (!own.empty()) {
      return own;
    }
    error = errno;
  }
  unavailable("no route to '" + host + "', the host of rank 0: " + std::strerror(error));
}

std::string with_interface(const std::string& address) {
  std::string name;
  ifaddrs* all = nullptr;
  static_cast<void>(::getifaddrs(&all));
  for (const ifaddrs* one = all; one != nullptr && name.empty(); one = one->ifa_next) {
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    char text[NI_MAXHOST] = {};
    if ((family == AF_INET || family == AF_INET6) &&
        ::getnameinfo(one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6),
                      text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
        address == text) {
      name = one->ifa_name;
    }
  }
  ::freeifaddrs(all);
  return name.empty() ? address : name + " (" + address + ")";
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace sherd::detail
