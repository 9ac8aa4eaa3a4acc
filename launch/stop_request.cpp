#include "launch/stop_request.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launch/signals.h"

namespace sherd::launch {
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;

// A signal handler gets no argument of ours, so this is the one place with mutable variables of the
// process. Lock-free atomics are what a handler may touch.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<std::int64_t> first_request_ns{0};  // 0: none
std::atomic<std::int64_t> last_by_launcher_ns{0};
std::atomic<int> requests_by_launcher{0};
std::atomic<int> requests_by_others{0};
std::atomic<pid_t> launcher_pid{0};  // 0: none
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<pid_t>::is_always_lock_free);

// What std::chrono::steady_clock reads; here by a call that a handler may make.
std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond_ns + now.tv_nsec;
}

int count_request(const siginfo_t& info, std::int64_t now) {
  const pid_t launcher = launcher_pid;
  if (launcher == 0 || info.si_code > 0 || info.si_pid != launcher) {
    return ++requests_by_others;
  }
  const std::int64_t last = last_by_launcher_ns.exchange(now);
  return last != 0 && now - last < kSecond_ns ? requests_by_launcher.load()
                                              : ++requests_by_launcher;
}

void on_signal(int number, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  const std::int64_t now = now_ns();
  std::int64_t none = 0;
  first_request_ns.compare_exchange_strong(none, now);
  if (count_request(*info, now) > 1) {
    // Raised here, delivered when this handler returns.
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  errno = error;
}

// Loops of LibTorch's libraries move the stack pointer to where their data lie; what the system
// writes there for a handler would destroy numbers, or the heap. The stack is kept for good.
void take_own_stack() {
  constexpr std::size_t kUsual = std::size_t{64} << 10;
  const std::size_t size = std::max(kUsual, 4 * std::size_t{::getauxval(AT_MINSIGSTKSZ)});
  void* const base =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base != MAP_FAILED) {
    const stack_t stack{base, 0, size};
    ::sigaltstack(&stack, nullptr);
  }
}

}  // namespace

void StopRequest::install(bool launched) {
  launcher_pid = launched ? ::getppid() : 0;
  take_own_stack();
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  action.sa_mask = stop_signals();
  for (const int signal : kStopSignals) {
    ::sigaction(signal, &action, nullptr);
  }
}

bool StopRequest::requested() noexcept {
  return first_request_ns != 0;
}

std::optional<std::chrono::steady_clock::time_point> StopRequest::requested_at() noexcept {
  const std::int64_t at_ns = first_request_ns;
  if (at_ns == 0) {
    return std::nullopt;
  }
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at_ns));
}

}  // namespace sherd::launch
