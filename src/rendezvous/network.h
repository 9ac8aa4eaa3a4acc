#pragma once
// Socket calls of a rendezvous that listens on one interface only.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::detail {

/// A listening TCP socket on `host`:`port` and on no other interface. Throws Error(Unavailable),
/// naming host, port and what to try.
[[nodiscard]] int listen_on(const std::string& host, std::uint16_t port);

/// The numeric address that a socket is bound to.
[[nodiscard]] std::string address_of(int socket);

/// The port that a socket is bound to.
[[nodiscard]] std::uint16_t port_of(int socket);

/// Whether a listening socket accepts connections from now on. If not, it stays open and bound, and
/// accepted connections are unaffected. Without effect where the system refuses it.
void set_admitting(int listening_socket, bool admits);

/// This process's listening TCP sockets.
[[nodiscard]] std::vector<int> listening_sockets();

/// Limits each send and receive on this process's TCP connections to that port of another process,
/// or of this one. Without a limit, a rank that is cut off waits until TCP gives up, 15 minutes.
void limit_connections_to(std::uint16_t port, std::chrono::milliseconds limit);

/// The numeric address of this host on the interface that leads to `host`. Throws
/// Error(Unavailable).
[[nodiscard]] std::string local_address_towards(const std::string& host, std::uint16_t port);

/// The interface of this host that has a numeric address, and the address: "eth0 (10.0.0.2)".
[[nodiscard]] std::string with_interface(const std::string& address);

/// Whether a numeric address is one that only its own host reaches.
[[nodiscard]] bool is_loopback(const std::string& address);

}  // namespace sherd::detail
