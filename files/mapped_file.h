#pragma once
// Files that are read through memory.

#include <string>
#include <string_view>

namespace sherd::files {

struct MappedRange;

/// A whole file mapped into memory, read-only; its pages are shared with every process that maps
/// it. If the file is made shorter meanwhile, or its disk fails, the bytes that are gone read as
/// zero and require_mapped_files() throws: without this, a signal would end the process.
class MappedFile {
 public:
  /// bytes() is empty if `path` is no regular file, is empty or cannot be mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
  MappedRange* range_ = nullptr;
};

/// Throws Error(StorageIo), naming the file, if zeros were read in place of the bytes of a
/// MappedFile that still lives. Call it after reading, before what was read is used. Costs a load
/// of an atomic; may be called on any thread.
void require_mapped_files();

}  // namespace sherd::files
