#pragma once
// One run at a time in an output folder.

#include <filesystem>
#include <string>
#include <vector>

namespace llm::train {

/// The lock of an output folder: an advisory lock (flock) on its file `lock`, which also tells who
/// holds it. The system gives it up when the process ends, however that happens, so that a file
/// left behind locks nobody out. One process of a run takes it.
class OutputLock {
 public:
  /// Makes the folder if need be and takes the lock; waits up to 2 s for a run that is just ending.
  /// Throws sherd::Error(CannotWrite), naming host and process of the run that holds it, or why
  /// the folder cannot be written to.
  explicit OutputLock(const std::filesystem::path& output);
  /// Removes the file, and folders that this object made and nobody wrote into.
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

  /// Gives the lock up, as the destructor does. For a process that ends without one.
  void remove() noexcept;
  /// Throws sherd::Error(StorageIo) when the folder has been removed or replaced meanwhile.
  void check_folder_is_there() const;
  /// Empty, or why the file system gives no locks: other runs are not kept out.
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
