#pragma once
// A log of one JSON object a line.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "files/appended_file.h"

namespace llm::track {

/// Appends records to a file, each written through at once, so that a run that ends early has
/// recorded all its steps; a power cut costs the records of about a second. A pipe or a device
/// (`/dev/null`) is only written to. On a full disk records wait in memory, of which they take a
/// few MiB at most, and follow in their order when there is room.
class JsonlLog {
 public:
  using Warn = std::function<void(const std::string& line)>;

  /// Opens `path`. A resumed run keeps the records up to `steps_done` and drops later ones, so that
  /// no step appears twice; with 0 the file starts empty. `warn` is told, once, that the disk is
  /// full. Throws sherd::Error(CannotWrite), naming the path.
  JsonlLog(const std::string& path, std::int64_t steps_done, Warn warn = {});
  JsonlLog(const JsonlLog&) = delete;
  JsonlLog& operator=(const JsonlLog&) = delete;
  /// Makes the last records durable.
  ~JsonlLog();

  /// Writes one object, or keeps it for later where the disk is full. Throws
  /// sherd::Error(StorageIo) for other faults, also when the file has been removed.
  void write(const std::string& json);
  /// Returns when what could be written is on the disk, so that a power cut does not take lines of
  /// steps whose checkpoint is there. Throws sherd::Error(StorageIo) as write() does.
  void sync();
  /// How many records are not in the file for want of room.
  [[nodiscard]] std::int64_t missing_records() const {
    return dropped_ + static_cast<std::int64_t>(waiting_.size());
  }

 private:
  void write_waiting();
  void sync_now();
  // What fails for want of room, and may then fail.
  template <class Work>
  void if_there_is_room(const Work& work);

  std::string path_;
  Warn warn_;
  std::deque<std::string> waiting_;  // lines that are to be written, the oldest first
  std::size_t waiting_bytes_ = 0;
  std::int64_t dropped_ = 0;
  std::int64_t unsynced_ = 0;  // lines that are written, and perhaps not on the disk yet
  sherd::files::AppendedFile file_;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace llm::track
