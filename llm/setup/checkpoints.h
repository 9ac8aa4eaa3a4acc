#pragma once
// The checkpoints of a run: their folders, which are kept, and which a run resumes from.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sherd/error.h"

namespace llm::setup {

/// The folder `<output>/checkpoints` with one folder per checkpoint, `step-00000120`. Only complete
/// ones (with a manifest) count. Nothing is ever removed but the files of checkpoints: other files
/// stay, and so does the folder that holds them.
class Checkpoints {
 public:
  /// `output` is the run's folder.
  explicit Checkpoints(const std::filesystem::path& output) : root_(output / "checkpoints") {}

  [[nodiscard]] std::filesystem::path folder_of(std::int64_t step) const;
  /// Steps with a complete checkpoint, ascending.
  [[nodiscard]] std::vector<std::int64_t> complete_steps() const;
  /// True if the checkpoint of `step` has a manifest.
  [[nodiscard]] bool is_complete(std::int64_t step) const;
  /// Bytes of the files in all complete ones.
  [[nodiscard]] std::int64_t bytes() const;
  /// Makes room for a checkpoint after step `newest`: removes those that prune() would remove after
  /// that save, but never the one of `newest`, and none if that is not complete. Returns whether
  /// any was removed. One rank calls it.
  bool make_room(std::int64_t keep, std::int64_t newest, std::optional<std::int64_t> best) const;
  /// Steps after `step` whose folder holds files of a checkpoint, but no manifest; ascending.
  [[nodiscard]] std::vector<std::int64_t> steps_without_manifest(std::int64_t step) const;
  /// A path in the folder of a step after `step` that is no part of a checkpoint, so that no
  /// checkpoint may take its place; none if there is none.
  [[nodiscard]] std::optional<std::filesystem::path> other_file_after(std::int64_t step) const;
  /// Removes all but the newest `keep` complete ones up to step `newest`, the one just saved, that
  /// of step `best`, and leftovers of interrupted saves. Those of later steps stay. Returns the
  /// folders that stay because they hold other files. One rank calls it.
  std::vector<std::filesystem::path> prune(std::int64_t keep, std::int64_t newest,
                                           std::optional<std::int64_t> best = std::nullopt) const;
  /// Removes every checkpoint and leftover of this folder. One rank calls it.
  void remove_all() const;
  /// Takes damaged checkpoints out of the way, each under a name such as `step-00000120.damaged`,
  /// and removes those that an earlier call has set aside. One rank calls it.
  void set_aside(const std::vector<std::int64_t>& steps) const;
  [[nodiscard]] const std::filesystem::path& root() const { return root_; }

 private:
  [[nodiscard]] std::vector<std::int64_t> steps() const;  // whose folder is there, ascending

  std::filesystem::path root_;
};

/// The checkpoints that a path names, newest first: a checkpoint's own folder, or those of a run's
/// output folder. Throws sherd::Error(InputMissing) where there is none, calling the path `key`, as
/// the user gave it.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_at(const std::string& path,
                                                                const std::string& key);

/// True if the folder has a checkpoint's manifest; what else it needs is not looked at.
[[nodiscard]] bool is_checkpoint(const std::filesystem::path& folder);

/// A checkpoint, and a line for each newer one that was passed over because it is damaged.
struct IntactCheckpoint {
  std::filesystem::path folder;
  std::vector<std::string> notices = {};
};
/// The newest of checkpoints_at() whose files are all there (sherd::require_checkpoint_files()).
/// Throws sherd::Error as checkpoints_at() does; the fault of the newest if all are damaged.
[[nodiscard]] IntactCheckpoint newest_intact(const std::string& path, const std::string& key);
/// True if a fault of reading a checkpoint means that it is damaged: an older one may serve.
[[nodiscard]] bool is_damage(const sherd::Error& fault);

}  // namespace llm::setup
