#include "files/input.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "files/other_kind.h"
#include "files/system_text.h"
#include "sherd/error.h"

namespace sherd::files {
namespace {

// Linux moves at most 0x7ffff000 bytes a call.
constexpr size_t kMaxReadBytes = size_t{1} << 30;

std::string size_text(uint64_t bytes) {
  constexpr uint64_t kMebibyte = uint64_t{1} << 20;
  return bytes % kMebibyte == 0 ? std::to_string(bytes / kMebibyte) + " MiB"
                                : std::to_string(bytes) + " bytes";
}

}  // namespace

InputFile open_input(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer for ever. It changes nothing for a
  // regular file.
  FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const int open_error = errno;
  struct stat status = {};
  // A socket cannot be opened at all: what it is says more than "No such device or address".
  const int found =
      descriptor.get() >= 0 ? ::fstat(descriptor.get(), &status) : ::stat(path.c_str(), &status);
  if (found == 0 && !S_ISREG(status.st_mode)) {
    throw Error(ExitCode::BadData,
                path + ": expected a regular file, found " + kind_text(status.st_mode));
  }
  if (descriptor.get() < 0) {
    throw Error(ExitCode::InputMissing, path + ": cannot be opened: " + errno_text(open_error) +
                                            (open_error == ENOENT ? where_it_begins(path) : ""));
  }
  if (found != 0) {
    throw Error(ExitCode::StorageIo, path + ": its size cannot be read: " + errno_text(errno));
  }
  return {std::move(descriptor), static_cast<uint64_t>(status.st_size)};
}

void read_exactly(int fd, const std::string& path, uint64_t offset, void* out, size_t bytes) {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, to, std::min(bytes, kMaxReadBytes), static_cast<off_t>(offset));
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

std::string read_file(const std::string& path, uint64_t max_bytes) {
  const InputFile input = open_input(path);
  if (input.size_bytes > max_bytes) {
    throw Error(ExitCode::BadData, path + ": " + std::to_string(input.size_bytes) +
                                       " bytes; expected at most " + size_text(max_bytes));
  }
  std::string bytes(input.size_bytes, '\0');
  read_exactly(input.descriptor.get(), path, 0, bytes.data(), bytes.size());
  refuse_git_lfs_pointer(path, bytes);
  return bytes;
}

}  // namespace sherd::files
