#pragma once
// Ends a process during work that does not check for a stop request.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace app {

/// While it lives, a request to stop ends the process at once with this exit code. For the phase in
/// which there is nothing to save: reading weights and data takes minutes and checks no signal.
class EndAtOnce {
 public:
  /// `requested` is asked every few milliseconds, on a thread of this object; `last_words` is
  /// called there before the end.
  EndAtOnce(int exit_code, std::function<bool()> requested, std::function<void()> last_words);
  EndAtOnce(const EndAtOnce&) = delete;
  EndAtOnce& operator=(const EndAtOnce&) = delete;
  ~EndAtOnce() = default;

  /// Replaces the last words.
  void set_last_words(std::function<void()> last_words);
  /// Called before the last words, so that nothing half-written is left behind.
  void set_clean_up(std::function<void()> clean_up);
  /// Does `work`, which no end comes between, and which `clean_up` makes undone from then on.
  void begin(const std::function<void()>& work, std::function<void()> clean_up);
  /// From now on requests are handled elsewhere.
  void disarm();

 private:
  void watch(const std::stop_token& token, int exit_code);

  std::function<bool()> requested_;
  std::function<void()> last_words_;
  std::function<void()> clean_up_ = [] {};
  std::mutex mutex_;  // of last_words_ and clean_up_, and of the end
  std::condition_variable_any disarmed_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace app
