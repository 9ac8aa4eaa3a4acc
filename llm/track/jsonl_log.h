#pragma once
// A log of one JSON object a line.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "files/appended_file.h"

namespace llm::track {

/// Appends records to a file, each written through at once, so that a run that ends early has
/// recorded all its steps. A thread makes them durable about once a second, so that no step waits
/// for the disk: a power cut costs the records of about a second. A pipe or a device (`/dev/null`)
/// is only written to. On a full disk records wait in memory, at most 4 MiB of them, and follow in
/// their order when there is room; beyond that the oldest are lost.
class JsonlLog {
 public:
  using Warn = std::function<void(const std::string& line)>;

  /// Opens `path`. A resumed run keeps the records up to `steps_done` and drops later ones, so that
  /// no step appears twice; with 0 the file starts empty. `warn` gets a line when
  /// the disk is full, and one when records are lost. Throws sherd::Error(CannotWrite), naming the
  /// path.
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
  [[nodiscard]] std::int64_t missing_records() const;

 private:
  void write_waiting();
  void drop_oldest();
  void sync_now();
  void sync_in_turns();  // on the thread
  void rethrow_fault_of_thread();
  // What fails for want of room, and may then fail.
  template <class Work>
  void if_there_is_room(const Work& work);

  std::string path_;
  Warn warn_;
  std::deque<std::string> waiting_;  // lines that are to be written, the oldest first
  std::size_t waiting_bytes_ = 0;
  bool told_full_ = false;  // since records last waited for room
  bool told_loss_ = false;
  sherd::files::AppendedFile file_;  // which the thread only syncs
  mutable std::mutex mutex_;         // over the members below
  std::condition_variable changed_;
  std::int64_t dropped_ = 0;
  std::int64_t unsynced_ = 0;  // lines that are written, and perhaps not on the disk yet
  std::exception_ptr fault_;   // of the thread, for the next call
  bool ends_ = false;
  std::thread syncer_;  // after all that it uses
};

}  // namespace llm::track
