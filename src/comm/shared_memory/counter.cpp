#include "comm/shared_memory/counter.h"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sherd::detail {

namespace {

// Not FUTEX_PRIVATE_FLAG: the sleepers are other processes.
void futex(const std::atomic<uint32_t>& word, int operation, uint32_t value,
           const timespec* limit) {
  syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

}  // namespace

void SharedCounter::raise_to(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    futex(value_, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void SharedCounter::sleep_until_raised(uint32_t value, std::chrono::nanoseconds limit) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (!reaches(seen, value)) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
    const timespec time{seconds.count(), (limit - seconds).count()};
    futex(value_, FUTEX_WAIT, seen, &time);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace sherd::detail
