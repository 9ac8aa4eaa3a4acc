#pragma once
// Files that grow: logs, be they a regular file, a pipe or a device.

#include <string>
#include <string_view>

#include "files/file_descriptor.h"
#include "sherd/error.h"

namespace sherd::files {

/// Something that lines are appended to. A regular file is created if it is not there; a device or
/// a pipe is written to as it is.
class AppendedFile {
 public:
  /// Throws Error(CannotWrite), also for a folder and for a pipe that nobody reads.
  explicit AppendedFile(const std::string& path);

  [[nodiscard]] bool is_regular() const { return regular_; }
  /// Writes all of `bytes` through to the operating system. Throws Error(StorageIo) if that fails,
  /// after which a regular file ends where it did before: NoRoom where it is full; and if a regular
  /// file has been removed: what is written then could not be read.
  void append(std::string_view bytes);
  /// Makes a regular file durable. Throws NoRoom, Error(StorageIo).
  void sync();

 private:
  std::string path_;
  FileDescriptor descriptor_;
  bool regular_ = false;
};

}  // namespace sherd::files
