#pragma once
// The checkpoints of a run: their folders, which are kept, and which a run resumes from.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace llm::train {

/// The folder `<output>/checkpoints` with one folder a checkpoint, `step-00000120`. Only complete
/// ones (with a manifest) count; what an interrupted save left behind is passed over.
class Checkpoints {
 public:
  /// `output` is the run's folder.
  explicit Checkpoints(const std::filesystem::path& output) : root_(output / "checkpoints") {}

  [[nodiscard]] std::filesystem::path folder_of(std::int64_t step) const;
  /// Steps with a complete checkpoint, ascending.
  [[nodiscard]] std::vector<std::int64_t> complete_steps() const;
  /// Removes all but the newest `keep` complete ones up to step `newest`, the one just saved, that
  /// of step `best`, and leftovers of interrupted saves. Those of later steps stay. One rank calls
  /// it.
  void prune(std::int64_t keep, std::int64_t newest,
             std::optional<std::int64_t> best = std::nullopt) const;
  /// Removes every checkpoint and leftover of this folder. One rank calls it.
  void remove_all() const;
  /// Takes a damaged checkpoint out of the way, under the name `step-00000120.damaged`. One rank
  /// calls it.
  void set_aside(std::int64_t step) const;
  [[nodiscard]] const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path root_;
};

/// The checkpoints that a path names, newest first: a checkpoint's own folder, or those of a run's
/// output folder. Throws sherd::Error(InputMissing) where there is none, calling the path `key`, as
/// the user gave it.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_at(const std::string& path,
                                                                const std::string& key);

}  // namespace llm::train
