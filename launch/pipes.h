#pragma once
// File descriptors that close themselves, pipes, and whole writes.

#include <string>
#include <string_view>
#include <utility>

namespace sherd::launch {

/// Owns one file descriptor; closes it at the end.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { close(); }

  /// The descriptor, or -1 if there is none.
  [[nodiscard]] int get() const { return fd_; }
  void close();

 private:
  int fd_ = -1;
};

/// Both ends are closed on exec.
struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

/// Throws `Error` (Unavailable) if the system has no descriptor left.
[[nodiscard]] Pipe make_pipe();

/// Makes reads and writes of `fd` return at once.
void set_non_blocking(int fd);

/// What lay ready in a descriptor.
struct Bytes {
  std::string data;
  bool at_end = false;  ///< no more can come
};

/// All that lies ready in a non-blocking pipe.
[[nodiscard]] Bytes read_available(int fd);

/// Writes all of `text`, or gives up silently where nobody reads any more. SIGPIPE must be blocked.
void write_all(int fd, std::string_view text);

}  // namespace sherd::launch
