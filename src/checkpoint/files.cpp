#include "checkpoint/files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::detail {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void storage_failure(const std::string& what, const std::string& path) {
  throw Error(ExitCode::StorageIo, what + " '" + path + "' failed: " + std::strerror(errno));
}

void sync_path(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) {
    storage_failure("opening", path);
  }
  const bool synced = fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (!synced) {
    errno = error;
    storage_failure("making durable (fsync)", path);
  }
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::absolute(path).lexically_normal().parent_path();
  return parent.string();
}

}  // namespace

std::string shard_file_name(int rank, int world_size) {
  char name[64];
  std::snprintf(name, sizeof name, "shard-%05d-of-%05d.safetensors", rank, world_size);
  return name;
}

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder)) {
    throw Error(ExitCode::CannotWrite,
                "cannot create the folder '" + folder +
                    "': " + (error ? error.message() : "a file of that name is there") +
                    ". Choose another output folder, or make this one writable.");
  }
}

void remove_folder(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error && error != std::errc::not_a_directory) {  // then it is not there: a file is above it
    throw Error(ExitCode::StorageIo, "cannot remove '" + folder + "': " + error.message());
  }
}

void write_durably(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".tmp";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw Error(ExitCode::CannotWrite,
                "cannot create '" + temporary + "': " + std::strerror(errno));
  }
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t written = write(fd, content.data() + done, content.size() - done);
    if (written < 0 && errno != EINTR) {
      const int error = errno;
      close(fd);
      unlink(temporary.c_str());
      errno = error;
      storage_failure("writing", temporary);
    }
    done += written > 0 ? static_cast<size_t>(written) : 0;
  }
  close(fd);
  sync_path(temporary, O_WRONLY);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    storage_failure("renaming", temporary);
  }
  sync_path(parent_of(path), O_RDONLY | O_DIRECTORY);
}

void rename_folder(const std::string& from, const std::string& to) {
  // An older folder changes places with the new one in one step, so that the name is never without
  // a complete checkpoint; a file system that cannot do that is given two steps.
  const bool exchanged =
      renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0;
  const bool occupied = !exchanged && errno != ENOENT;
  const std::string old = to + ".old";
  if (occupied) {
    remove_folder(old);
  }
  if (!exchanged && ((occupied && rename(to.c_str(), old.c_str()) != 0) ||
                     rename(from.c_str(), to.c_str()) != 0)) {
    storage_failure("renaming", from);
  }
  sync_path(parent_of(to), O_RDONLY | O_DIRECTORY);
  remove_folder(exchanged ? from : old);
}

}  // namespace sherd::detail
