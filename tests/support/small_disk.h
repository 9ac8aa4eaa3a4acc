#pragma once
// A disk that is soon full.

#include <filesystem>

#include <sys/mount.h>

namespace sherd::test {

/// A small file system (16 KiB unless told otherwise), where this process may mount one.
class SmallDisk {
 public:
  static constexpr const char* kWhyNot =
      "SKIPPED: a small file system needs the right to mount one";

  /// `options` as for tmpfs: "size=16k,nr_inodes=10".
  explicit SmallDisk(std::filesystem::path path, const char* options = "size=16k")
      : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    is_there_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
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
