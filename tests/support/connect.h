#pragma once
// Strangers that connect to ports of this host.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "launch/pipes.h"

namespace sherd::test {

/// A connection to 127.0.0.1; none if there is no answer within a fifth of a second.
inline launch::FileDescriptor connect_to(std::uint16_t port) {
  launch::FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  pollfd event{fd.get(), POLLOUT, 0};
  int error = 1;
  socklen_t size = sizeof error;
  if (::poll(&event, 1, 200) == 1 &&
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) {
    return fd;
  }
  return {};
}

inline bool connects(std::uint16_t port) {
  return connect_to(port).get() >= 0;
}

/// The port of a TCP socket.
inline std::uint16_t port_of(int fd) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(own).sin_port);
}

}  // namespace sherd::test
