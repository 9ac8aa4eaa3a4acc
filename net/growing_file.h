#pragma once
// A file that grows by what arrives, and may have begun to before. Of net/ alone.

#include <cstdint>
#include <string>
#include <string_view>

#include "files/file_descriptor.h"

namespace sherd::net {

/// Made when it gets its first byte, or by `finish`. Throws Error: CannotWrite for what cannot be
/// made or is no regular file, a link included; StorageIo.
class GrowingFile {
 public:
  explicit GrowingFile(std::string path);

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  void append(std::string_view bytes);
  void start_over();
  /// Makes it durable, with no byte in it if none came.
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
