#pragma once
// Passes the file descriptors of shared memory from one process to others of its host.

#include <chrono>
#include <string>
#include <vector>

#include "launch/pipes.h"

namespace sherd::detail {

using Deadline = std::chrono::steady_clock::time_point;

/// A socket that waits for processes of this host, under a name that cannot be guessed and is in no
/// folder (an abstract Unix socket).
struct HandOverSocket {
  launch::FileDescriptor socket;
  std::string name;  ///< to be told to the others: they may connect from now on
};

/// Throws Error(Unavailable), as all of these do.
[[nodiscard]] HandOverSocket open_hand_over();

/// Gives `files` to each of these processes, and to no other.
void hand_over(const HandOverSocket& from, const std::vector<int64_t>& processes,
               const std::vector<int>& files, Deadline deadline);

/// Takes the `count` files that `process` hands over under `name`.
[[nodiscard]] std::vector<launch::FileDescriptor> take_over(const std::string& name,
                                                            int64_t process, size_t count,
                                                            Deadline deadline);

}  // namespace sherd::detail
