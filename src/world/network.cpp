#include "world/network.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::detail {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

[[noreturn]] void unavailable(const std::string& what) {
  throw Error(ExitCode::Unavailable, what);
}

Addresses resolve(const std::string& host, std::uint16_t port, int socket_type) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socket_type;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    unavailable("cannot resolve the address '" + host + "' of rank 0: " + gai_strerror(failure) +
                ". Set MASTER_ADDR to a name or address that every host knows.");
  }
  return {found, &freeaddrinfo};
}

}  // namespace

int listen_on(const std::string& host, std::uint16_t port) {
  const std::string place = host + ":" + std::to_string(port);
  const Addresses address = resolve(host, port, SOCK_STREAM);
  const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    unavailable(std::string("cannot open a socket: ") + std::strerror(errno));
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    close(fd);
    if (error == EADDRINUSE) {
      unavailable(
          "port in use: " + place +
          " is taken by another process. Set MASTER_PORT to a free port, or end the other run.");
    }
    unavailable("cannot listen on " + place + ": " + std::strerror(error) +
                ". Rank 0 must run on the host that MASTER_ADDR names.");
  }
  return fd;
}

std::uint16_t port_of(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
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

std::string local_address_towards(const std::string& host, std::uint16_t port) {
  const Addresses address = resolve(host, port, SOCK_DGRAM);
  const int fd = socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  // Connecting a datagram socket sends nothing; it only chooses the route.
  const bool routed = fd >= 0 && connect(fd, address->ai_addr, address->ai_addrlen) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  const int error = errno;
  if (fd >= 0) {
    close(fd);
  }
  char text[NI_MAXHOST] = {};
  if (!routed || getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0,
                             NI_NUMERICHOST) != 0) {
    unavailable("no route to '" + host + "', the host of rank 0: " + std::strerror(error));
  }
  return text;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace sherd::detail
