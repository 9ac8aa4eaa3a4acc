#pragma once
// Whether an address answers.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/lookup.h"

namespace sherd::detail {

/// Where a rank listens.
struct Endpoint {
  std::string host;  ///< name or address
  std::uint16_t port = 0;
};

/// What became of a try to connect.
struct Dialled {
  /// Numeric: that which answered, else all that `host` resolved to; empty where it did not.
  std::string address;
  std::string fault;  ///< empty: it answered
};

/// Tries to connect to endpoints, once or several times.
class Dialler {
 public:
  explicit Dialler(std::vector<Endpoint> endpoints, Resolver resolver = &getaddrinfo);

  /// Tries all endpoints, and all addresses of each, at the same time, and lets go of what
  /// answered. Takes no longer than `patience`: a name that is still being looked up then is a
  /// fault, and the next try waits for the same lookup.
  [[nodiscard]] std::vector<Dialled> dial(std::chrono::milliseconds patience);

 private:
  std::vector<Endpoint> endpoints_;
  Resolver resolver_;
  std::vector<std::optional<Lookup>> lookups_;  ///< by endpoint
};

/// "node0:29500, which is 10.0.0.7 here: Connection refused".
[[nodiscard]] std::string to_text(const Endpoint& endpoint, const Dialled& dialled);

}  // namespace sherd::detail
