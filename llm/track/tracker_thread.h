#pragma once
// A tracker that nobody waits for.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "llm/track/tracker.h"

namespace llm::track {

/// Gives points to a tracker from a thread of its own. Whether the tracker is slow or fails, or
/// there is no thread to be had, the caller goes on: points that it does not take in time are
/// dropped and counted.
class TrackerThread {
 public:
  struct Limits {
    std::size_t waiting_points = 10'000;           ///< more are dropped; a point takes about 1 KB
    std::chrono::milliseconds first_pause{1'000};  ///< before a call is made again; then doubled
    std::chrono::milliseconds longest_pause{30'000};
    int last_tries = 2;  ///< of a call, once the end is asked for
    /// For a call that was told to end: libcurl listens once a second.
    std::chrono::milliseconds grace{2'500};
  };

  explicit TrackerThread(std::unique_ptr<Tracker> tracker)
      : TrackerThread(std::move(tracker), {}) {}
  TrackerThread(std::unique_ptr<Tracker> tracker, Limits limits);
  TrackerThread(const TrackerThread&) = delete;
  TrackerThread& operator=(const TrackerThread&) = delete;
  /// Waits for nothing: a thread that has not ended does so by itself.
  ~TrackerThread();

  /// From which step on there will be points, and what came before. The tracker begins with the
  /// first of them.
  void begin(std::int64_t steps_done, EarlierPoints earlier = {});
  /// Never waits.
  void push(Point point);
  /// Asks the tracker to end when it has taken what waits. Never waits.
  void ask_to_end(End how);
  /// Returns when it has ended, or after its patience, counted from `asked`. What it has not taken
  /// is lost: the news say so. A call that it is in is then told to end, so that no thread of it is
  /// left at the end of the process; only one that does not listen is.
  void wait_for_end(std::chrono::steady_clock::time_point asked = std::chrono::steady_clock::now());
  /// What happened since the last call, in lines for people: the first failure, the last one,
  /// dropped points at the end.
  [[nodiscard]] std::vector<std::string> take_news();

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);

  void start();  // with the mutex held

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace llm::track
