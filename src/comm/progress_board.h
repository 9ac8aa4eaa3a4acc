#pragma once
// What a rank is waiting in, what ranks report of their work, and how long others wait for them
// because of it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/running_time.h"
#include "sherd/world.h"

namespace sherd::detail {

/// The collective that a rank is waiting in. Any thread may read it.
class CurrentWait {
 public:
  /// Sets the collective to `what` for the scope; restores the outer one after it.
  class Entry {
   public:
    Entry(CurrentWait& current, std::string what)
        : current_(current),
          outer_(current.exchange(Wait{std::move(what), std::chrono::steady_clock::now()})) {}
    ~Entry() { current_.exchange(std::move(outer_)); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    CurrentWait& current_;
    std::optional<Wait> outer_;
  };

  [[nodiscard]] std::optional<Wait> read() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }

 private:
  std::optional<Wait> exchange(std::optional<Wait> next) {
    const std::lock_guard lock(mutex_);
    return std::exchange(now_, std::move(next));
  }

  mutable std::mutex mutex_;
  std::optional<Wait> now_;
};

/// The latest report of a rank.
struct WorkReport {
  int64_t number = 0;  ///< counts the reports of this rank; 0: it has not reported
  /// Others wait at least this long without news. 0: the timeout of the world.
  std::chrono::milliseconds limit{0};
  std::string what;  ///< for people: "saving checkpoint runs/a/step-00000012"
  bool operator==(const WorkReport&) const = default;
};

/// The reports of all ranks of a world. Thread-safe.
class ProgressBoard {
 public:
  ProgressBoard() = default;
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;
  virtual ~ProgressBoard() = default;
  /// Replaces the report of `rank`. Does not block or throw.
  virtual void put(int rank, const WorkReport& report) = 0;
  /// Returns the latest report of each rank; empty if the board cannot be read. Does not throw.
  [[nodiscard]] virtual std::vector<WorkReport> reports() = 0;
  /// True once the board could not be read: the rank that holds it is gone, or does not answer.
  [[nodiscard]] virtual bool is_lost() const { return false; }
};

/// The reports of one rank. Thread-safe.
class OwnReports {
 public:
  /// A rank reports at most once per `interval`, except if the limit changes.
  OwnReports(std::shared_ptr<ProgressBoard> board, int rank, std::chrono::milliseconds timeout);
  /// Reports progress of this rank at `what`.
  void put(const std::string& what, std::chrono::milliseconds limit);

 private:
  using Clock = std::chrono::steady_clock;
  std::shared_ptr<ProgressBoard> board_;
  int rank_;
  Clock::duration interval_;
  std::mutex mutex_;  // of the rest
  WorkReport last_;
  Clock::time_point put_at_{};
};

/// One wait for other ranks. It is over when no rank of the world has reported progress for the
/// timeout and for the limit of each open phase, while this process was running.
class Patience {
 public:
  /// `board`: null if there are no reports; then the timeout alone counts.
  Patience(ProgressBoard* board, std::chrono::milliseconds timeout);
  /// Returns true when the wait is over. Call it several times per second.
  [[nodiscard]] bool is_over();
  /// Returns the reports that it has seen last.
  [[nodiscard]] const std::vector<WorkReport>& reports() const { return reports_; }

 private:
  void look();

  ProgressBoard* board_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds longest_limit_;
  launch::RunningTime silence_;                     // since the last news
  launch::RunningTime::Clock::duration next_look_;  // of the silence
  std::vector<WorkReport> reports_;
};

/// Returns a sentence for each of `ranks` (of the world) that has reported, after a space.
[[nodiscard]] std::string last_work_of(const std::vector<WorkReport>& reports,
                                       const std::vector<int>& ranks);

}  // namespace sherd::detail
