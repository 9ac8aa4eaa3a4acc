#pragma once
// A log of one JSON object a line.

#include <chrono>
#include <cstdint>
#include <string>

#include "files/appended_file.h"

namespace llm::track {

/// Appends records to a file, each written through at once, so that a run that ends early has
/// recorded all its steps; a power cut costs the records of about a second. A pipe or a device
/// (`/dev/null`) is only written to.
class JsonlLog {
 public:
  /// Opens `path`. A resumed run keeps the records up to `steps_done` and drops later ones, so that
  /// no step appears twice; with 0 the file starts empty. Throws sherd::Error(CannotWrite),
  /// naming the path.
  JsonlLog(const std::string& path, std::int64_t steps_done);
  JsonlLog(const JsonlLog&) = delete;
  JsonlLog& operator=(const JsonlLog&) = delete;
  /// Makes the last records durable.
  ~JsonlLog();

  /// Writes one object. Throws sherd::Error(StorageIo), also when the file has been removed.
  void write(const std::string& json);
  /// Returns when what was written is on the disk, so that a power cut does not take lines of steps
  /// whose checkpoint is there. Throws sherd::Error(StorageIo).
  void sync();

 private:
  std::string path_;
  sherd::files::AppendedFile file_;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace llm::track
