#pragma once
// One process at a time prepares a store.

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "files/file_descriptor.h"

namespace llm::inputs {

/// The lock of a store: flock() on a file that its holder touches and writes its progress to. The
/// system releases it when the holder ends. A holder that does not touch the file for `patience`
/// has died on another host or is suspended: its lock is taken over.
class StoreLock {
 public:
  struct Times {
    std::chrono::milliseconds touch{5'000};
    std::chrono::milliseconds patience{60'000};
    std::chrono::milliseconds look{200};
  };

  /// Blocks until the lock is taken, or `is_done` returns true. Tells `waits` what the holder
  /// wrote. Throws sherd::Error(CannotWrite).
  StoreLock(std::filesystem::path path, const std::function<bool()>& is_done,
            const std::function<void(const std::string& progress)>& waits)
      : StoreLock(std::move(path), is_done, waits, Times()) {}
  StoreLock(std::filesystem::path path, const std::function<bool()>& is_done,
            const std::function<void(const std::string& progress)>& waits, const Times& times);
  /// Removes the file and releases the lock.
  ~StoreLock();
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

  [[nodiscard]] bool is_held() const { return file_.get() >= 0; }
  /// Whether the lock of a silent holder was taken: what it wrote may still change.
  [[nodiscard]] bool was_taken_over() const { return taken_over_; }
  /// For those who wait.
  void tell(const std::string& progress);
  /// Throws sherd::Error(StorageIo) if another process has taken the lock over.
  void require_held() const;

 private:
  [[nodiscard]] bool try_to_take();
  [[nodiscard]] bool is_at_its_path() const;
  void touch_until_the_end(std::chrono::milliseconds interval);

  std::filesystem::path path_;
  sherd::files::FileDescriptor file_;
  bool taken_over_ = false;
  std::mutex mutex_;  // over the next two
  std::condition_variable changed_;
  std::string progress_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace llm::inputs
