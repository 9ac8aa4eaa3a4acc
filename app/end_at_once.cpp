#include "app/end_at_once.h"

#include <chrono>
#include <cstdlib>
#include <utility>

namespace app {

namespace {

constexpr std::chrono::milliseconds kInterval{20};

}  // namespace

EndAtOnce::EndAtOnce(int exit_code, std::function<bool()> requested,
                     std::function<void()> last_words)
    : requested_(std::move(requested)),
      last_words_(std::move(last_words)),
      thread_([this, exit_code](const std::stop_token& token) { watch(token, exit_code); }) {}

void EndAtOnce::begin(const std::function<void()>& work, std::function<void()> clean_up) {
  const std::lock_guard lock(mutex_);
  work();
  clean_up_ = std::move(clean_up);
}

void EndAtOnce::disarm() {
  thread_.request_stop();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void EndAtOnce::watch(const std::stop_token& token, int exit_code) {
  std::unique_lock lock(mutex_);
  while (!token.stop_requested()) {
    if (requested_()) {
      clean_up_();
      last_words_();
      std::_Exit(exit_code);  // other threads are in the middle of something
    }
    disarmed_.wait_for(lock, token, kInterval, [] { return false; });
  }
}

}  // namespace app
