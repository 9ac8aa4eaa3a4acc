#pragma once
// One run at a time in an output folder.

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace llm::train {

/// The lock of an output folder: an advisory lock (flock) on its file `lock`, which also names its
/// holder. The system releases it when the process ends, however that happens, so that a leftover
/// file locks nobody out. One process of a run takes it.
class OutputLock {
 public:
  /// What a wait for a host that may be dead needs.
  struct OtherHosts {
    /// A file server keeps the lock of a dead client for its lease, 90 s on most NFS servers.
    std::chrono::milliseconds lease{100'000};
    /// Whether a file is on a file system of several hosts.
    std::function<bool(int file)> shares = is_on_network;
    std::function<void(const std::string& line)> say = [](const std::string& /*line*/) {};
  };
  /// Creates the folder if necessary and takes the lock. Waits up to 2 s for a run that is just
  /// ending, or for the lease if a process of another host holds the lock on a network file system;
  /// says so. Throws sherd::Error(CannotWrite), naming host and process of the run that holds it,
  /// or why the folder cannot be written to.
  explicit OutputLock(const std::filesystem::path& output) : OutputLock(output, OtherHosts()) {}
  OutputLock(const std::filesystem::path& output, const OtherHosts& hosts);
  /// Removes the file, and the folders that this object created if they are still empty.
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

  /// Releases the lock, as the destructor does. For a process that ends without running it.
  void remove() noexcept;
  /// Throws sherd::Error(StorageIo) when the folder has been removed or replaced in the meantime.
  void check_folder_is_there() const;
  /// Empty, or why the file system has no locks: other runs are then not kept out.
  [[nodiscard]] const std::string& warning() const { return warning_; }

  /// NFS, SMB, Ceph, Lustre, GPFS and the like.
  [[nodiscard]] static bool is_on_network(int file);

 private:
  bool try_to_take();
  [[nodiscard]] bool is_at_its_path() const;

  std::filesystem::path output_;
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // outermost first
  int file_ = -1;
  std::string warning_;
};

}  // namespace llm::train
