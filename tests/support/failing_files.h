#pragma once
// A disk that is full, and one that loses what it has, as far as a process can tell.

#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sherd::test {

/// While it lives files may not be written past `bytes`: a write that fails half-way through a run.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

/// While it lives the nameless files of a folder are empty; afterwards they are as long as before,
/// and zero: what was read is lost.
class LostFiles {
 public:
  explicit LostFiles(const std::string& folder) {
    for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      const std::string target = std::filesystem::read_symlink(one.path(), closed).string();
      struct stat status = {};
      if (!closed && target.starts_with(folder + "/") && ::stat(one.path().c_str(), &status) == 0) {
        sizes_[one.path()] = status.st_size;
      }
    }
    EXPECT_FALSE(sizes_.empty());
    for (const auto& [path, size] : sizes_) {
      EXPECT_EQ(::truncate(path.c_str(), 0), 0) << path;
    }
  }
  ~LostFiles() {
    for (const auto& [path, size] : sizes_) {
      EXPECT_EQ(::truncate(path.c_str(), size), 0) << path;
    }
  }
  LostFiles(const LostFiles&) = delete;
  LostFiles& operator=(const LostFiles&) = delete;

 private:
  std::map<std::string, off_t> sizes_;
};

}  // namespace sherd::test
