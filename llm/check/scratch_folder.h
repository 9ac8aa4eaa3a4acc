#pragma once
// A folder that is gone when a check has ended, however it ends.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "sherd/world.h"

namespace llm::check {

/// Does `work`, and from then on `clean_up` before a process that is asked to stop ends at once.
using BeginsToBeUndone =
    std::function<void(const std::function<void()>& work, std::function<void()> clean_up)>;

/// A new folder beside the output folder, so on its file system, the same for all ranks; rank 0
/// makes it and removes it.
class ScratchFolder {
 public:
  /// Collective. Throws the same sherd::Error on every rank: CannotWrite; RanksDisagree where one
  /// does not see the folder.
  ScratchFolder(const std::filesystem::path& output, sherd::World& world,
                const BeginsToBeUndone& begin);
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() = default;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Before the end, where nothing more is to lie in it. Not collective.
  void remove() { removes_.reset(); }

 private:
  std::filesystem::path path_;
  std::shared_ptr<void> removes_;  // of rank 0
};

}  // namespace llm::check
