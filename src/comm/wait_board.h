#pragma once
// What a rank is waiting for, readable from other threads.

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "sherd/world.h"

namespace sherd::detail {

/// Any thread may read it.
class WaitBoard {
 public:
  /// While it lives, the board says `what`; then again what it said before.
  class Entry {
   public:
    Entry(WaitBoard& board, std::string what)
        : board_(board),
          before_(board.exchange(Wait{std::move(what), std::chrono::steady_clock::now()})) {}
    ~Entry() { board_.exchange(std::move(before_)); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    WaitBoard& board_;
    std::optional<Wait> before_;
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

}  // namespace sherd::detail
