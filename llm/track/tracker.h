#pragma once
// What a tracker of runs is: a place that shows the figures of runs beside each other.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace llm::track {

/// Figures of one moment of a run: a step, or an evaluation after it.
struct Point {
  std::int64_t step = 0;  ///< from 1
  double unix_seconds = 0;
  std::vector<std::pair<std::string, double>> metrics;  ///< by name: "train/loss"
};

/// How a run, or this part of it, ended.
enum class End { Finished, Stopped, Failed };

/// "finished", "stopped" or "failed".
[[nodiscard]] inline std::string name_of(End how) {
  return how == End::Finished ? "finished" : how == End::Stopped ? "stopped" : "failed";
}

/// Gives the points of a run's earlier sessions, in order; empty where there are none.
using EarlierPoints = std::function<void(const std::function<void(const Point&)>& take)>;

/// A server that cannot take something now, and may later.
class TryLater : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A tracker. Its methods are called in the order begin, log, …, end, by one thread that may wait
/// (see TrackerThread); they throw TryLater for a call that is to be made again, any other
/// exception where there is no point in going on.
class Tracker {
 public:
  Tracker() = default;
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;
  virtual ~Tracker() = default;

  /// "mlflow"
  [[nodiscard]] virtual std::string name() const = 0;
  /// Where it writes to, for people, from the start on.
  [[nodiscard]] virtual std::string place() const = 0;
  /// Begins or, where `steps_done` are done, goes on: `earlier` gives what was logged of them.
  virtual void begin(std::int64_t steps_done, const EarlierPoints& earlier) = 0;
  /// Takes points, whose steps never fall.
  virtual void log(std::span<const Point> points) = 0;
  virtual void end(End how) = 0;
  /// After the end: what there is to see or to do, for people; empty for nothing.
  [[nodiscard]] virtual std::string closing_words() const { return ""; }
  /// How long the end of a run may wait for this tracker.
  [[nodiscard]] virtual std::chrono::milliseconds patience(End how) const {
    constexpr int kSeconds[] = {15, 5, 2};  // by End
    return std::chrono::seconds(kSeconds[static_cast<int>(how)]);
  }

  /// Asks a call that another thread is in to end soon, in whatever way.
  void abandon() { abandoned_ = true; }

 protected:
  [[nodiscard]] bool is_abandoned() const { return abandoned_; }

 private:
  std::atomic<bool> abandoned_ = false;
};

}  // namespace llm::track
