#pragma once
// Memory that processes of one host share, without a name that could be left behind.

#include <cstdint>

#include "launch/pipes.h"

namespace sherd::detail {

/// Bytes in a memory file (memfd) that others map too. The file has no name anywhere: it ends with
/// the last process that maps it, however that process ends. Zeroed; pages come when they are
/// touched, so that a range nobody uses costs nothing but addresses.
class SharedRegion {
 public:
  /// Nothing yet.
  SharedRegion() = default;
  /// An empty file. Throws Error(Unavailable) where the system cannot create one.
  [[nodiscard]] static SharedRegion make();
  /// The file that another process has made, received from it.
  explicit SharedRegion(launch::FileDescriptor file) : file_(std::move(file)) {}
  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&& other) noexcept;
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion();

  /// Gives a file that was made here its size, once and for all. Throws Error(Unavailable).
  void set_size(int64_t bytes);
  /// Maps the file, which must have this size, at an address aligned to huge pages, and closes it
  /// here. Throws Error(Unavailable).
  void map(int64_t bytes);
  /// Allocates the pages of a range now, huge ones where it is large and the kernel has them: where
  /// memory runs out this throws Error (OutOfMemory), instead of a signal when the range is
  /// written.
  void populate(const void* begin, int64_t bytes) const;
  /// The same with pages as they come.
  void take_pages(const void* begin, int64_t bytes) const;
  /// Gives the pages that lie wholly in a range back to the system, for all processes: it reads as
  /// zeros afterwards.
  void give_back_pages(const void* begin, int64_t bytes) const;

  /// To be handed to others; before map().
  [[nodiscard]] int file() const { return file_.get(); }
  /// The first byte; after map().
  [[nodiscard]] char* data() const { return data_; }

 private:
  void collapse(int64_t first, int64_t end) const;

  launch::FileDescriptor file_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace sherd::detail
