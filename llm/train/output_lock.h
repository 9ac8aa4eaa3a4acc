#pragma once
// One run at a time in an output folder.

#include <filesystem>
#include <string>
#include <vector>

namespace llm::train {

/// The lock of an output folder: an advisory lock (flock) on its file `lock`, which also names its
/// holder. The system releases it when the process ends, however that happens, so that a leftover
/// file locks nobody out. One process of a run takes it.
class OutputLock {
 public:
  /// Creates the folder if necessary and takes the lock; waits up to 2 s for a run that is just
  /// ending. Throws sherd::Error(CannotWrite), naming host and process of the run that holds it, or
  /// why the folder cannot be written to.
  explicit OutputLock(const std::filesystem::path& output);
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
