#pragma once
// A file descriptor that closes itself. Standard library and POSIX alone: launch/ uses it too.

#include <utility>

#include <unistd.h>

namespace sherd::files {

/// Owns one file descriptor; closes it at the end.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { close(); }

  /// The descriptor, or -1 if there is none.
  [[nodiscard]] int get() const { return fd_; }
  /// Gives the descriptor up; the caller closes it.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  /// Closes it now. Errors of close() are not reported: a writer syncs first.
  void close() {
    if (fd_ >= 0) {
      ::close(release());
    }
  }

 private:
  int fd_ = -1;
};

}  // namespace sherd::files
