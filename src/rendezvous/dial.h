#pragma once
// Whether an address answers.

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/network.h"

namespace sherd::detail {

/// Where a rank listens.
struct Endpoint {
  std::string host;  ///< name or numeric address
  std::uint16_t port = 0;
};

/// The result of an attempt to connect.
struct Dialled {
  /// Numeric: the address that answered, else all that `host` resolved to; empty if it did not.
  std::string address;
  std::string fault;  ///< empty: it answered
};

/// Tries to connect to endpoints, once or several times.
class Dialler {
 public:
  explicit Dialler(std::vector<Endpoint> endpoints, Resolver resolver = &getaddrinfo)
      : endpoints_(std::move(endpoints)),
        resolver_(std::move(resolver)),
        lookups_(endpoints_.size()) {}

  /// Tries all addresses of all endpoints at the same time, for `patience` at most. A name that is
  /// still being looked up then is a fault, and the next call waits for the same lookup.
  [[nodiscard]] std::vector<Dialled> dial(std::chrono::milliseconds patience);

 private:
  std::vector<Endpoint> endpoints_;
  Resolver resolver_;
  std::vector<Lookup> lookups_;  ///< by endpoint
};

/// "node0:29500, which is 10.0.0.7 here: Connection refused".
[[nodiscard]] std::string to_text(const Endpoint& endpoint, const Dialled& dialled);

}  // namespace sherd::detail
