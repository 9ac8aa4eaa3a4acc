#pragma once
// The few socket calls that a narrow rendezvous needs.

#include <cstdint>
#include <string>

namespace sherd::detail {

/// A listening TCP socket on `host`:`port` and on no other interface. Throws Error(Unavailable),
/// naming host, port and what to try.
[[nodiscard]] int listen_on(const std::string& host, std::uint16_t port);

/// The numeric address of this host on the interface that leads to `host`. Throws
/// Error(Unavailable).
[[nodiscard]] std::string local_address_towards(const std::string& host, std::uint16_t port);

}  // namespace sherd::detail
