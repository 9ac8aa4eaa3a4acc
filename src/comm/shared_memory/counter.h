#pragma once
// Numbers that ranks wait for, in memory that processes share.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace sherd::detail {

/// A number that one rank raises and the others wait for. It starts at 0, as fresh shared memory
/// does, and may wrap: what is compared are differences.
///
/// [Note: What a counter orders]
/// All that the raising rank did before raise_to() has happened for whoever then finds the value
/// reached. A sleeper is not forgotten: it says that it sleeps before it looks at the value for the
/// last time, and raise_to() looks for sleepers after it has written the value; these four
/// operations are in one total order (seq_cst), so that either the sleeper sees the value or
/// raise_to() sees the sleeper. One that was killed in its sleep costs later wakes a system call.
class SharedCounter {
 public:
  /// By the one rank that owns it.
  void raise_to(uint32_t value);
  [[nodiscard]] bool has_reached(uint32_t value) const {
    return reaches(value_.load(std::memory_order_acquire), value);
  }
  /// Returns when the value has been raised, after `limit`, or for no reason.
  void sleep_until_raised(uint32_t value, std::chrono::nanoseconds limit);

 private:
  static bool reaches(uint32_t seen, uint32_t value) {
    return static_cast<int32_t>(seen - value) >= 0;
  }
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};
static_assert(sizeof(SharedCounter) == 8 && std::atomic<uint32_t>::is_always_lock_free);

/// A moment of a waiting loop, for the benefit of the core's other thread.
void pause_briefly();

/// How many cores this process may run on.
[[nodiscard]] int usable_cores();

}  // namespace sherd::detail
