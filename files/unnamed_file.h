#pragma once
// A file of a rank that nobody else sees.

#include <cstdint>
#include <memory>
#include <string>

#include "files/file_descriptor.h"
#include "files/transfers.h"

namespace sherd::files {

/// A file in a folder, without a name: it is gone with the process, however that ends. Read and
/// written past the page cache where the file system can.
class UnnamedFile {
 public:
  /// What lies in it begins and ends at multiples of it.
  static constexpr std::int64_t kAlignmentBytes = 4096;

  /// Makes the folder where it is not there. Throws Error(CannotWrite).
  explicit UnnamedFile(const std::string& folder);

  /// Room for `bytes` more, which are zero: where it begins. Throws Error(CannotWrite), with what
  /// is missing, before anything is written.
  [[nodiscard]] std::int64_t allocate(std::int64_t bytes);
  /// What began there is not needed any more; its place on the disk is given back.
  void release(std::int64_t begin, std::int64_t bytes);
  [[nodiscard]] Transfers& transfers() { return *transfers_; }
  /// "io_uring, direct"
  [[nodiscard]] std::string description() const;

 private:
  std::string folder_;
  FileDescriptor file_;
  bool is_direct_ = true;
  std::int64_t bytes_ = 0;
  std::unique_ptr<Transfers> transfers_;  ///< ends before the file is closed
};

}  // namespace sherd::files
