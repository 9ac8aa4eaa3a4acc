#pragma once
// File descriptors that close themselves, and reads and writes that are whole or an Error. No
// LibTorch.

#include <cstddef>
#include <cstdint>
#include <string>

namespace sherd::detail {

/// Owns a file descriptor; -1 is none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  [[nodiscard]] int get() const { return fd_; }
  /// Gives the descriptor up; the caller closes it.
  [[nodiscard]] int release();

 private:
  int fd_ = -1;
};

/// A regular file opened for reading, and its size when it was opened.
struct InputFile {
  FileDescriptor descriptor;
  uint64_t size_bytes = 0;
};

/// Opens a regular file. Throws Error: InputMissing if it is not there or may not be read, BadData
/// if it is something else than a regular file (a folder, a pipe).
InputFile open_input(const std::string& path);

/// Reads bytes [offset, offset + bytes) into `out`. Throws Error(StorageIo) on a read error, and
/// when the file ends early.
void read_exactly(int fd, const std::string& path, uint64_t offset, void* out, size_t bytes);

/// Writes `bytes` bytes at `offset`. Throws Error(StorageIo).
void write_exactly(int fd, const std::string& path, uint64_t offset, const void* data,
                   size_t bytes);

/// The text of an errno value.
std::string errno_text(int error);

}  // namespace sherd::detail
