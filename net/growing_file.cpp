#include "net/growing_file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/system_text.h"
#include "sherd/error.h"

namespace sherd::net {

GrowingFile::GrowingFile(std::string path) : path_(std::move(path)) {
  open(0);
}

void GrowingFile::append(std::string_view bytes) {
  require_open();
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_bytes_));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      fail("writing", put < 0 ? errno : ENOSPC);
    }
    size_bytes_ += static_cast<std::uint64_t>(put);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

void GrowingFile::start_over() {
  if (size_bytes_ > 0 && ::ftruncate(descriptor_.get(), 0) != 0) {
    fail("emptying it", errno);
  }
  size_bytes_ = 0;
}

void GrowingFile::finish() {
  require_open();
  if (::fsync(descriptor_.get()) != 0) {
    fail("fsync", errno);
  }
}

// Neither follows a link nor waits for a pipe's reader.
void GrowingFile::open(int flags) {
  descriptor_ = files::FileDescriptor(
      ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0666));
  if (descriptor_.get() < 0 && errno == ENOENT && flags == 0) {
    return;
  }
  struct stat status = {};
  if (descriptor_.get() < 0 || ::fstat(descriptor_.get(), &status) != 0) {
    throw Error(ExitCode::CannotWrite, path_ + ": cannot be created: " + files::errno_text(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ExitCode::CannotWrite, path_ + ": cannot be written: it is " +
                                           files::kind_text(status.st_mode) + ", no file");
  }
  size_bytes_ = static_cast<std::uint64_t>(status.st_size);
}

void GrowingFile::require_open() {
  if (descriptor_.get() < 0) {
    open(O_CREAT);
  }
}

void GrowingFile::fail(const std::string& what, int error) const {
  throw Error(ExitCode::StorageIo, path_ + ": " + what + " failed: " + files::errno_text(error));
}

}  // namespace sherd::net
