#include "files/output.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "files/system_text.h"
#include "sherd/error.h"

namespace sherd::files {
namespace {

constexpr uint64_t kMaxWriteBytes = uint64_t{1} << 30;  // Linux moves at most 0x7ffff000 a call

constexpr const char* kNotCreated = ": cannot be created";

[[noreturn]] void cannot_create(const std::string& path, const std::string& why) {
  throw Error(ExitCode::CannotWrite, path + kNotCreated + ": " + why);
}

// The path that is written to: a link's target. Refuses what may not be replaced.
std::string replaceable(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) {
    return path;  // nothing of that name; creating the file reports other faults
  }
  std::string target = path;
  if (S_ISLNK(status.st_mode)) {
    std::error_code error;
    target = std::filesystem::canonical(path, error).string();
    if (error || ::lstat(target.c_str(), &status) != 0) {
      cannot_create(path, "it is a link that leads nowhere");
    }
  }
  if (!S_ISREG(status.st_mode)) {
    cannot_create(path, S_ISDIR(status.st_mode)
                            ? errno_text(EISDIR)
                            : kind_text(status.st_mode) + " of that name is there");
  }
  return target;
}

FileDescriptor create(const std::string& path, const std::string& temporary) {
  // What an earlier process of this id left behind is removed, not followed: it may be a link.
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    throw_errno(ExitCode::CannotWrite, path + kNotCreated, errno);
  }
  FileDescriptor descriptor(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (descriptor.get() < 0) {
    throw_errno(ExitCode::CannotWrite, path + kNotCreated, errno);
  }
  return descriptor;
}

void sync_whole(int fd, const std::string& path) {
  if (::fsync(fd) != 0) {
    throw_errno(ExitCode::StorageIo, path + ": fsync failed", errno);
  }
}

std::string folder_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

NewFile::NewFile(const std::string& path)
    : path_(replaceable(path)),
      temporary_(path_ + ".tmp-" + std::to_string(::getpid())),
      descriptor_(create(path, temporary_)) {}

NewFile::~NewFile() {
  if (!committed()) {
    ::unlink(temporary_.c_str());
  }
}

void NewFile::reserve(uint64_t bytes) {
  while (::fallocate(descriptor_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS || bytes == 0) {
      return;  // this file system cannot; writing tells
    }
    if (errno == EINTR) {
      continue;
    }
    const int error = errno;
    struct statvfs disk = {};
    const bool known = ::fstatvfs(descriptor_.get(), &disk) == 0;
    throw_errno(
        ExitCode::CannotWrite,
        path_ + kNotCreated + ": needs " + std::to_string(bytes) + " bytes" +
            (known ? ", " + std::to_string(uint64_t{disk.f_bavail} * disk.f_frsize) + " are free"
                   : ""),
        error);
  }
}

void NewFile::write(uint64_t offset, const void* data, uint64_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(descriptor_.get(), from, std::min(bytes, kMaxWriteBytes),
                                 static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      throw_errno(ExitCode::StorageIo,
                  temporary_ + ": writing at byte " + std::to_string(offset) + " failed",
                  put < 0 ? errno : ENOSPC);
    }
    from += put;
    offset += static_cast<uint64_t>(put);
    bytes -= static_cast<uint64_t>(put);
  }
}

void NewFile::begin_writeback(uint64_t offset, uint64_t bytes) {
  static_cast<void>(::sync_file_range(descriptor_.get(), static_cast<off_t>(offset),
                                      static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE));
}

void NewFile::sync() {
  if (::fdatasync(descriptor_.get()) != 0) {
    throw_errno(ExitCode::StorageIo, temporary_ + ": fdatasync failed", errno);
  }
}

void NewFile::commit() {
  sync_whole(descriptor_.get(), temporary_);
  if (::close(descriptor_.release()) != 0) {
    throw_errno(ExitCode::StorageIo, temporary_ + ": close failed", errno);
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw_errno(ExitCode::StorageIo, temporary_ + ": cannot be renamed to " + path_, errno);
  }
  temporary_.clear();
  sync_folder(folder_of(path_));  // else the new name may be lost with the power
}

void write_file(const std::string& path, std::string_view content) {
  NewFile file(path);
  file.write(0, content.data(), content.size());
  file.commit();
}

void sync_folder(const std::string& folder) {
  const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) {
    throw Error(ExitCode::StorageIo, folder + ": cannot be opened for fsync: " + errno_text(errno));
  }
  if (::fsync(opened.get()) != 0 && errno != EINVAL) {  // EINVAL: this file system has no such call
    throw_errno(ExitCode::StorageIo, folder + ": fsync failed", errno);
  }
}

}  // namespace sherd::files
