#include "network.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <netdb.h>
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

}  // namespace sherd::detail
