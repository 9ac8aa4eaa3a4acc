#pragma once
// A tracker that nobody waits for.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llm/track/tracker.h"

namespace llm::track {

/// Gives points to a tracker from a thread of its own. Whether the tracker is slow or fails, the
/// caller goes on: points that it does not take in time are dropped and counted.
class TrackerThread {
 public:
  struct Limits {
    std::size_t waiting_points = 10'000;           ///< more are dropped; a point takes about 1 KB
    std::chrono::milliseconds first_pause{1'000};  ///< before a call is made again; then doubled
    std::chrono::milliseconds longest_pause{30'000};
  };

  explicit TrackerThread(std::unique_ptr<Tracker> tracker)
      : TrackerThread(std::move(tracker), {}) {}
  TrackerThread(std::unique_ptr<Tracker> tracker, Limits limits);
  TrackerThread(const TrackerThread&) = delete;
  TrackerThread& operator=(const TrackerThread&) = delete;
  /// Waits for nothing: the thread ends by itself.
  ~TrackerThread();

  /// From which step on there will be points. The tracker begins with the first of them.
  void begin(std::int64_t steps_done);
  /// Never waits.
  void push(Point point);
  /// Asks the tracker to end when it has taken what waits. Never waits.
  void ask_to_end(End how);
  /// Returns when it has ended, or after its patience from now. What it has not taken is lost: the
  /// news say so.
  void wait_for_end();
  /// What happened since the last call, in lines for people: a failure once, dropped points at the
  /// end.
  [[nodiscard]] std::vector<std::string> take_news();

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
};

}  // namespace llm::track
