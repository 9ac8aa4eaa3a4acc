#pragma once
// Large blocks of memory side by side, and used again.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

namespace app {

/// What an arena has done, for tests and reports.
struct ArenaCounts {
  std::int64_t mapped_bytes = 0;     ///< held from the system
  std::int64_t most_used_bytes = 0;  ///< that blocks ever had at once
  std::int64_t growths = 0;          ///< how often the system was asked for more
};

/// Hands out blocks of one stretch of addresses, on huge pages. A block lies in the smallest free
/// gap that it fits into; gaps that touch are one. So what is held stays near the most that was
/// ever in use, whatever sizes blocks have: it grows only where no gap is large enough.
/// Thread-safe.
class MemoryArena {
 public:
  /// A block of at least `bytes` bytes, aligned to 64 KiB, contents undefined; null where the
  /// system has no more memory. Gaps are given back to the system before that.
  void* take(std::size_t bytes);
  /// Frees a block; false where it is none of this arena's.
  bool put_back(void* block);
  [[nodiscard]] ArenaCounts counts();

 private:
  void* take_from_gap(std::size_t bytes);
  [[nodiscard]] bool grow(std::size_t bytes);
  void add_gap(char* start, std::size_t bytes);
  void give_gaps_back();

  std::mutex mutex_;
  std::map<char*, std::size_t> gaps_;  // sizes by address; no two touch
  std::unordered_map<void*, std::size_t> used_;
  char* end_ = nullptr;  // where the next growth should begin
  std::size_t used_bytes_ = 0, most_used_bytes_ = 0, mapped_bytes_ = 0;
  std::size_t unasked_bytes_ = 0;  // mapped since the system was asked
  std::int64_t growths_ = 0;
};

}  // namespace app
