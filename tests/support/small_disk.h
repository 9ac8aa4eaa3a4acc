#pragma once
// A disk that is soon full.

#include <filesystem>

#include <sys/mount.h>

namespace sherd::test {

/// A file system of 16 KiB, where this process may mount one.
class SmallDisk {
 public:
  static constexpr const char* kWhyNot =
      "SKIPPED: a file system of 16 KiB needs the right to mount one";

  explicit SmallDisk(std::filesystem::path path) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    is_there_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=16k") == 0;
  }
  ~SmallDisk() {
    if (is_there_) {
      ::umount(path_.c_str());
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  [[nodiscard]] bool is_there() const { return is_there_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool is_there_ = false;
};

}  // namespace sherd::test
