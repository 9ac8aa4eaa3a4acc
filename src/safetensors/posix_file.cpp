#include "src/safetensors/posix_file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::detail {
namespace {

// Linux moves at most 0x7ffff000 bytes a call.
constexpr size_t kMaxCallBytes = size_t{1} << 30;

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

std::string errno_text(int error) {
  return std::generic_category().message(error);
}

InputFile open_input(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer for ever. It changes nothing for a
  // regular file.
  FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (descriptor.get() < 0) {
    throw Error(ExitCode::InputMissing, path + ": cannot be opened: " + errno_text(errno));
  }
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0) {
    throw Error(ExitCode::StorageIo, path + ": its size cannot be read: " + errno_text(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ExitCode::BadData,
                path + ": expected a regular file, found " +
                    (S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket"));
  }
  return {std::move(descriptor), static_cast<uint64_t>(status.st_size)};
}

void read_exactly(int fd, const std::string& path, uint64_t offset, void* out, size_t bytes) {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, to, std::min(bytes, kMaxCallBytes), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw Error(ExitCode::StorageIo, path + ": reading at byte " + std::to_string(offset) +
                                           " failed: " + errno_text(errno));
    }
    if (got == 0) {
      throw Error(ExitCode::StorageIo, path + ": ends at byte " + std::to_string(offset) + ", " +
                                           std::to_string(bytes) +
                                           " bytes early: it was cut after it was opened");
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

void write_exactly(int fd, const std::string& path, uint64_t offset, const void* data,
                   size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put =
        ::pwrite(fd, from, std::min(bytes, kMaxCallBytes), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      throw Error(ExitCode::StorageIo, path + ": writing at byte " + std::to_string(offset) +
                                           " failed: " + errno_text(put < 0 ? errno : ENOSPC));
    }
    from += put;
    offset += static_cast<uint64_t>(put);
    bytes -= static_cast<size_t>(put);
  }
}

}  // namespace sherd::detail
