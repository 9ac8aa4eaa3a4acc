#pragma once
// What those must know of a run who end its process.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "llm/train/output_lock.h"

namespace llm::train {

/// Kept up to date by the run; any thread may read it. Before the first step nothing has to be
/// saved, and a process that is asked to stop may end at once. From then on the run stops by
/// itself.
class RunStatus {
 public:
  /// The lock that a process which ends at once removes.
  void set_lock(std::weak_ptr<OutputLock> lock) {
    const std::lock_guard guard(mutex_);
    lock_ = std::move(lock);
  }
  /// Where the run begins: the folder of a checkpoint, or empty for the model.
  void set_start(std::optional<std::string> checkpoint) {
    const std::lock_guard guard(mutex_);
    start_ = std::move(checkpoint);
  }
  /// The first step follows. Does not return where end_before_steps() has returned true.
  void begin_steps() {
    const std::lock_guard guard(mutex_);
    has_begun_ = true;
  }
  /// True if no step has begun: the output folder is unlocked, no step will begin, and the caller
  /// ends the process.
  [[nodiscard]] bool end_before_steps() {
    mutex_.lock();  // and stays locked, so that no step begins
    if (has_begun_) {
      mutex_.unlock();
      return false;
    }
    if (const auto lock = lock_.lock()) {
      lock->remove();
    }
    return true;
  }
  /// As it was set; none: not known. For the thread that ends the process.
  [[nodiscard]] const std::optional<std::string>& start() const { return start_; }

  void set_done(std::int64_t step) { done_ = step; }
  void set_saved(std::int64_t step) { saved_ = step; }
  /// The steps that no checkpoint holds yet: "step 13", "steps 13 to 17"; else empty.
  [[nodiscard]] std::string unsaved() const {
    const std::int64_t done = done_;
    const std::int64_t first = saved_ + 1;
    return first > done    ? ""
           : first == done ? "step " + std::to_string(done)
                           : "steps " + std::to_string(first) + " to " + std::to_string(done);
  }

 private:
  std::mutex mutex_;  // of the four that follow
  bool has_begun_ = false;
  std::weak_ptr<OutputLock> lock_;
  std::optional<std::string> start_;
  std::atomic<std::int64_t> done_ = 0;
  std::atomic<std::int64_t> saved_ = 0;
};

}  // namespace llm::train
