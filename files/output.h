#pragma once
// Writing files that appear under their name whole, durably, or not at all.

#include <cstdint>
#include <string>
#include <string_view>

#include "files/file_descriptor.h"

namespace sherd::files {

/// A file that is being written under a temporary name beside its own (`<path>.tmp-<process id>`).
/// `commit` gives it its name: a reader sees the old file or the whole new one, also after a crash.
/// A link is followed: the file it points to is replaced. What is no regular file (a folder, a
/// device, a pipe) is never replaced.
class NewFile {
 public:
  /// Throws Error(CannotWrite) if `path` may not be replaced or the file cannot be created.
  explicit NewFile(const std::string& path);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  /// Removes the temporary file unless it was committed.
  ~NewFile();

  /// Takes the disk space of the whole file at once, where the file system can. Throws
  /// Error(CannotWrite), naming what is needed and what is free.
  void reserve(uint64_t bytes);
  /// Writes bytes at an offset. Throws Error(StorageIo).
  void write(uint64_t offset, const void* data, uint64_t bytes);
  /// Asks the system to begin to write these bytes to the disk, so that less is left for sync() and
  /// commit() to wait for. Does not wait, and reports nothing: what fails is reported there.
  void begin_writeback(uint64_t offset, uint64_t bytes);
  /// fdatasync of what has been written. Throws Error(StorageIo).
  void sync();
  /// fsync, rename, fsync of the folder. Throws Error(StorageIo).
  void commit();
  [[nodiscard]] bool committed() const { return temporary_.empty(); }

 private:
  std::string path_;
  std::string temporary_;
  FileDescriptor descriptor_;
};

/// Writes a small file as NewFile does. Throws Error: CannotWrite, StorageIo; then nothing is left
/// behind.
void write_file(const std::string& path, std::string_view content);

/// Makes names in a folder durable. Throws Error(StorageIo).
void sync_folder(const std::string& folder);

}  // namespace sherd::files
