#pragma once
// What a name means on this host.

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include <netdb.h>
#include <sys/socket.h>

namespace sherd::detail {

/// getaddrinfo(3), or what a test puts in its place.
using Resolver = std::function<int(const char*, const char*, const addrinfo*, addrinfo**)>;

/// The addresses of a name, asked for on a thread of its own, since a resolver whose server is
/// silent takes up to a minute. It may be dropped at any time; the thread then ends by itself.
class Lookup {
 public:
  Lookup(const std::string& host, std::uint16_t port, int socket_type = SOCK_STREAM,
         const Resolver& resolver = &getaddrinfo);

  /// Whether it has ended before `deadline`; waits until it has.
  [[nodiscard]] bool ends_before(std::chrono::steady_clock::time_point deadline) const;
  /// Waits until it has ended. A list of at least one; null where the name does not resolve.
  [[nodiscard]] const addrinfo* addresses() const;
  /// Waits until it has ended. Why the name does not resolve; empty where it does.
  [[nodiscard]] const std::string& fault() const;

 private:
  struct Found {
    std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses{nullptr, &freeaddrinfo};
    std::string fault;
  };
  std::shared_future<Found> found_;
};

/// "10.0.0.7".
[[nodiscard]] std::string numeric_address(const sockaddr* address, socklen_t size);

}  // namespace sherd::detail
