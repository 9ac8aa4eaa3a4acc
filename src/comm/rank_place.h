#pragma once
// Where a rank runs: whether another can share memory with it, and whether it is still alive.

#include <cstdint>
#include <string>

namespace sherd::detail {

/// A process of a host. Sent to the other ranks as a text.
struct RankPlace {
  /// Equal if processes can share memory and see each other: the same boot of the same host, the
  /// same namespaces of processes and of networks, the same user. Empty if unknown.
  std::string host;
  int64_t process = 0;  ///< its number there
  uint64_t start = 0;   ///< when it began: process numbers repeat

  [[nodiscard]] static RankPlace of_this_process();
  [[nodiscard]] std::string to_text() const {
    return std::to_string(process) + " " + std::to_string(start) + " " + host;
  }
  [[nodiscard]] static RankPlace from_text(const std::string& text);

  [[nodiscard]] bool shares_host_with(const RankPlace& other) const {
    return !host.empty() && host == other.host;
  }
  /// Returns true if the process still runs; a zombie does not.
  [[nodiscard]] bool is_alive() const;
};

/// Returns the name of this host.
[[nodiscard]] std::string host_name();

}  // namespace sherd::detail
