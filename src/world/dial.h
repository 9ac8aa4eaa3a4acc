#pragma once
// Whether an address answers.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::detail {

/// Where a rank listens.
struct Endpoint {
  std::string host;  ///< name or address
  std::uint16_t port = 0;
};

/// What became of a try to connect.
struct Dialled {
  std::string address;  ///< numeric, as `host` resolved; empty where it did not
  std::string fault;    ///< empty: it answered
};

/// Tries to connect to all of them at the same time and lets go of what answered. Takes no longer
/// than `patience`, and as long as the resolver takes for names.
[[nodiscard]] std::vector<Dialled> dial(const std::vector<Endpoint>& endpoints,
                                        std::chrono::milliseconds patience);

/// "node0:29500, which is 10.0.0.7 here: Connection refused".
[[nodiscard]] std::string to_text(const Endpoint& endpoint, const Dialled& dialled);

}  // namespace sherd::detail
