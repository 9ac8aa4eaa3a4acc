#pragma once
// A file that grows as bytes arrive and may already hold some. Internal to net/.

#include <cstdint>
#include <string>
#include <string_view>

#include "files/file_descriptor.h"

namespace sherd::net {

/// Created with its first byte, or by `finish`. Throws Error: CannotWrite if it cannot be created
/// or is not a regular file (a link is refused too); StorageIo.
class GrowingFile {
 public:
  explicit GrowingFile(std::string path);

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  void append(std::string_view bytes);
  void start_over();
  /// Makes the file durable; creates it empty if no byte came.
  void finish();

 private:
  void open(int flags);
  void require_open();
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string path_;
  files::FileDescriptor descriptor_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace sherd::net
