#pragma once
// Ends a process during work that does not check for a stop request.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace app {

/// Ends the process with this exit code at a stop request, during its lifetime. For the phase that
/// has nothing to save: reading weights and data takes minutes and checks no signal.
class EndAtOnce {
 public:
  /// A thread of this object calls `requested` every few milliseconds, and `last_words` before it
  /// ends the process.
  EndAtOnce(int exit_code, std::function<bool()> requested, std::function<void()> last_words);
  EndAtOnce(const EndAtOnce&) = delete;
  EndAtOnce& operator=(const EndAtOnce&) = delete;
  ~EndAtOnce() = default;

  /// Runs `work` without interruption; from then on `clean_up` undoes it before the process ends.
  void begin(const std::function<void()>& work, std::function<void()> clean_up);
  /// Stops watching: from now on stop requests are handled elsewhere.
  void disarm();

 private:
  void watch(const std::stop_token& token, int exit_code);

  std::function<bool()> requested_;
  std::function<void()> last_words_;
  std::function<void()> clean_up_ = [] {};
  std::mutex mutex_;  // of clean_up_, and of the end
  std::condition_variable_any disarmed_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace app
