#include "files/appended_file.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/system_text.h"

namespace sherd::files {

namespace {

[[noreturn]] void cannot_append(const std::string& path, const std::string& why) {
  throw Error(ExitCode::CannotWrite, path + ": cannot be written to: " + why);
}

[[noreturn]] void failed(const std::string& path, const char* what, int number) {
  throw_errno(ExitCode::StorageIo, path + ": " + what + " failed", number);
}

}  // namespace

AppendedFile::AppendedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe that nobody reads fails instead of waiting.
  descriptor_ = FileDescriptor(::open(
      path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  struct stat status = {};
  if (descriptor_.get() < 0 || ::fstat(descriptor_.get(), &status) != 0) {
    cannot_append(
        path, errno == ENXIO ? "it is a pipe that nobody reads, or a socket" : errno_text(errno));
  }
  regular_ = S_ISREG(status.st_mode);
  const int flags = ::fcntl(descriptor_.get(), F_GETFL);
  ::fcntl(descriptor_.get(), F_SETFL, flags & ~O_NONBLOCK);  // a slow reader is waited for
}

void AppendedFile::append(std::string_view bytes) {
  struct stat status = {};
  const bool is_known = regular_ && ::fstat(descriptor_.get(), &status) == 0;
  if (is_known && status.st_nlink == 0) {
    throw Error(ExitCode::StorageIo, path_ + ": was removed while it was written to");
  }
  const std::size_t all = bytes.size();
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      const int fault = errno;
      if (is_known && bytes.size() < all) {  // to make a file smaller needs no room
        static_cast<void>(::ftruncate(descriptor_.get(), status.st_size));
      }
      failed(path_, "writing", fault);
    }
    bytes.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
  }
}

void AppendedFile::sync() {
  if (regular_ && ::fdatasync(descriptor_.get()) != 0) {
    failed(path_, "fdatasync", errno);
  }
}

}  // namespace sherd::files
