#pragma once
// Memory that processes of one host share, without a name that could be left behind.

#include <cstdint>
#include <memory>
#include <utility>

#include "launch/pipes.h"

namespace sherd::detail {

/// Zeroed bytes in a memory file (memfd) that others map too. The file has no name anywhere: it
/// ends with the last process that maps it, however that process ends. Pages are allocated when
/// they are touched, so an unused range costs addresses only.
class SharedRegion {
 public:
  SharedRegion() = default;
  /// Creates an empty file. Throws Error(Unavailable) if the system cannot.
  [[nodiscard]] static SharedRegion make();
  /// Takes the file that another process has made.
  explicit SharedRegion(launch::FileDescriptor file) : file_(std::move(file)) {}

  /// Sets the size of a file that was made here, for good. Throws Error(Unavailable).
  void set_size(int64_t bytes);
  /// Maps the file, which must have this size, at an address aligned to huge pages, and closes it
  /// here. Throws Error(Unavailable).
  void map(int64_t bytes);
  /// Allocates the pages of a range now, huge ones if the range is large and the kernel has them.
  /// Throws Error(OutOfMemory) if memory runs out; later a signal would end the process.
  void populate(const void* begin, int64_t bytes) const;
  /// Does the same without huge pages.
  void take_pages(const void* begin, int64_t bytes) const;
  /// Returns the pages that lie wholly in a range to the system, for all processes. The range
  /// reads as zeros afterwards.
  void give_back_pages(const void* begin, int64_t bytes) const;

  /// Returns the descriptor to hand to others; before map().
  [[nodiscard]] int file() const { return file_.get(); }
  /// Returns the first byte; after map().
  [[nodiscard]] char* data() const { return data_.get(); }

 private:
  void collapse(int64_t first, int64_t end) const;

  struct Unmap {
    int64_t bytes;
    void operator()(char* data) const;
  };
  launch::FileDescriptor file_;
  std::unique_ptr<char, Unmap> data_;
};

}  // namespace sherd::detail
