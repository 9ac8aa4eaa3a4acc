#pragma once
// Where a rank runs: whether another can share memory with it, and whether it is still alive.

#include <cstdint>
#include <string>

namespace sherd::detail {

/// A process among those of its host. Told to the other ranks as a text.
struct RankPlace {
  /// Equal where processes can share memory and see each other: the same boot of the same host, the
  /// same namespaces of processes and of networks, the same user. Empty where that is not known.
  std::string host;
  int64_t process = 0;  ///< its number there
  uint64_t start = 0;   ///< when it began: numbers come round again

  [[nodiscard]] static RankPlace of_this_process();
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static RankPlace from_text(const std::string& text);

  [[nodiscard]] bool shares_host_with(const RankPlace& other) const {
    return !host.empty() && host == other.host;
  }
  /// Whether that process is still there; one that has ended and was not waited for is not.
  [[nodiscard]] bool is_alive() const;
};

}  // namespace sherd::detail
