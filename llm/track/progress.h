#pragma once
// What a run is at, so that nobody wonders whether it still is.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace llm::track {

/// Takes a line for people.
using Say = std::function<void(const std::string& line)>;

/// Where lines for people go.
struct Output {
  Say say;  ///< a line that stays; called on one thread at a time but not always the same
  /// Shows text in the place of what it showed before, until it is given an empty one; none where
  /// the output is no terminal.
  std::function<void(const std::string& text)> show = {};
  Say warn = {};  ///< a line that must not be missed, such as of a full disk; none: `say` takes it
  std::function<int()> columns = [] { return 0; };  ///< of the terminal that reads `say`; 0: any
};

/// Says what takes long: on a terminal in a live line, as soon as it has taken a second; elsewhere
/// in a line of its own, whenever nothing was said for ten. For rank 0. It has a thread, so that
/// work need not think of it; without one, if the system has none, it only passes lines on.
class Progress {
 public:
  struct Times {
    std::chrono::milliseconds silence{10'000};  ///< never longer
    std::chrono::milliseconds before_live{1'000};
    std::chrono::milliseconds refresh{500};  ///< of the live line
  };

  explicit Progress(Output output) : Progress(std::move(output), {}) {}
  Progress(Output output, Times times);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// A line that stays.
  void say(const std::string& line);
  /// A line that must not be missed.
  void warn(const std::string& line);
  /// To which lines are fitted; 0: any.
  [[nodiscard]] int columns() const { return output_.columns(); }
  /// Calls what writes to the terminal by itself, or throws: no live line is in its way.
  void aside(const std::function<void()>& write);
  /// The same, and true, unless another thread is writing, whose reader may have stopped.
  bool try_aside(const std::function<void()>& write);
  /// Work begins, within what goes on already: "loading the model".
  void begin(const std::string& what);
  /// The newest work is at this now: "step 12/400 | …"; its time starts again.
  void set(const std::string& what);
  /// As much of the newest work is done: "12,000 of 87,599 questions"; without a total 0.
  void count(std::int64_t done, std::int64_t total, const std::string& unit);
  /// The newest work has ended.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Work {
    std::string what;
    std::string counted;
    Clock::time_point begun;
    Clock::time_point since;  // its text is told
  };

  void watch();
  // With the mutex held.
  void look(Clock::time_point now);
  void clear_live();
  void write_aside(const std::function<void()>& write);
  [[nodiscard]] std::string text(Clock::time_point now) const;

  Output output_;
  Times times_;
  std::mutex mutex_;  // over all below
  std::condition_variable changed_;
  std::vector<Work> works_;
  Clock::time_point said_;
  bool is_live_ = false;
  bool ends_ = false;
  std::thread thread_;
};

/// Work from here to the end of the block; none where `progress` is null, as on other ranks.
class Working {
 public:
  Working(Progress* progress, const std::string& what) : progress_(progress) {
    if (progress_ != nullptr) {
      progress_->begin(what);
    }
  }
  ~Working() {
    if (progress_ != nullptr) {
      progress_->end();
    }
  }
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  Progress* progress_;
};

/// Progress::say(), or nothing where `progress` is null, as on other ranks.
[[nodiscard]] inline Say lines_to(Progress* progress) {
  return [progress](const std::string& line) {
    if (progress != nullptr) {
      progress->say(line);
    }
  };
}

/// What `work` gives, which is told of as `what` while it goes on.
template <class Work>
decltype(auto) with_progress(Progress* progress, const std::string& what, const Work& work) {
  const Working working(progress, what);
  return work();
}

/// Progress::count() of this unit, to be called as work goes on; nothing where `progress` is null.
[[nodiscard]] inline std::function<void(std::int64_t done, std::int64_t total)> counted_in(
    const std::string& unit, Progress* progress) {
  return [=](std::int64_t done, std::int64_t total) {
    if (progress != nullptr) {
      progress->count(done, total, unit);
    }
  };
}

}  // namespace llm::track
