#pragma once
// The checkpoints of a run: their folders, which are kept, and which a run resumes from.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sherd/checkpoint.h"

namespace llm::train {

/// The folder `<output>/checkpoints` with one folder a checkpoint, `step-00000120`. Only complete
/// ones (with a manifest) count; what an interrupted save left behind is passed over.
class Checkpoints {
 public:
  explicit Checkpoints(const std::filesystem::path& output) : root_(output / "checkpoints") {}

  [[nodiscard]] std::filesystem::path folder_of(std::int64_t step) const;
  /// Steps with a complete checkpoint, ascending.
  [[nodiscard]] std::vector<std::int64_t> complete_steps() const;
  /// Removes all but the newest `keep` complete ones up to step `newest`, the one just saved; those
  /// of later steps, which belong to a run that was given up; and leftovers of interrupted saves.
  /// One rank calls it.
  void prune(std::int64_t keep, std::int64_t newest) const;
  /// What `checkpoint.resume` means: "never" nothing, "auto" the newest complete one if there is
  /// one, else a path: a checkpoint's folder, or a run's output folder. Throws
  /// sherd::Error(InputMissing) for a path without a checkpoint.
  [[nodiscard]] std::optional<std::filesystem::path> resume_from(const std::string& resume) const;

 private:
  std::filesystem::path root_;
};

}  // namespace llm::train
