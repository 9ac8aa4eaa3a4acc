#pragma once
// The socket on which rank 0's store listens, bound before any rank starts, so that no other
// program can take its port.

#include <cstdint>
#include <optional>

#include "launch/pipes.h"

namespace sherd::launch {

/// A listening TCP socket on 127.0.0.1 (never on another interface) and its port.
struct LoopbackSocket {
  FileDescriptor fd;  ///< closed on exec
  std::uint16_t port = 0;
};

/// Binds `port`, or a free port that the system picks. Throws `Error` (Unavailable) with the port
/// if it is taken.
[[nodiscard]] LoopbackSocket listen_on_loopback(std::optional<std::uint16_t> port);

}  // namespace sherd::launch
