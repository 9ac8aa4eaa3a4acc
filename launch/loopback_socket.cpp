#include "launch/loopback_socket.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "sherd/error.h"

namespace sherd::launch {
namespace {

[[noreturn]] void refuse(std::optional<std::uint16_t> port) {
  const std::string reason = std::strerror(errno);
  throw Error(ExitCode::Unavailable,
              port ? "cannot listen on 127.0.0.1 port " + std::to_string(*port) + ": " + reason +
                         ". Give another --port, or leave it out to use a free one"
                   : "cannot listen on 127.0.0.1: " + reason);
}

}  // namespace

LoopbackSocket listen_on_loopback(std::optional<std::uint16_t> port) {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // A port with connections in TIME_WAIT may be used again; one that has a listener may not.
  const int yes = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);

  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port.value_or(0));
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd.get() < 0 || ::bind(fd.get(), generic, length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0 || ::getsockname(fd.get(), generic, &length) != 0) {
    refuse(port);
  }
  return {std::move(fd), ntohs(address.sin_port)};
}

}  // namespace sherd::launch
