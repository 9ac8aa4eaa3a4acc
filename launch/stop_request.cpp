#include "launch/stop_request.h"

#include <atomic>
#include <csignal>

#include <unistd.h>

namespace sherd::launch {
namespace {

// A signal handler gets no argument of ours, so this is the one place with mutable variables of the
// process. Lock-free atomics are what a handler may touch.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<int> signals_counted{0};
std::atomic<bool> stop_requested{false};
std::atomic<pid_t> launcher_pid{0};  // 0: none
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int number, siginfo_t* info, void* /*context*/) {
  stop_requested = true;
  const pid_t launcher = launcher_pid;
  const bool repeated = launcher != 0 && info->si_code <= 0 && info->si_pid == launcher;
  if (!repeated && signals_counted.fetch_add(1) > 0) {
    // Raised here, delivered when this handler returns.
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

}  // namespace

void StopRequest::install(bool launched) {
  launcher_pid = launched ? ::getppid() : 0;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
}

bool StopRequest::requested() noexcept {
  return stop_requested;
}

}  // namespace sherd::launch
