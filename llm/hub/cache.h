#pragma once
// The cache of Hugging Face's libraries, in their layout, so that all share downloaded files:
// refs/REVISION names a commit, snapshots/COMMIT/FILE links to blobs/HASH.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "files/file_descriptor.h"
#include "llm/hub/repo.h"

namespace llm::hub {

class RepoCache {
 public:
  RepoCache(std::filesystem::path cache, const Repo& repo);

  [[nodiscard]] std::filesystem::path blob(const std::string& digest) const;
  [[nodiscard]] std::filesystem::path snapshot(const std::string& commit) const;
  /// Returns the recorded commit of a revision; none if there is none.
  [[nodiscard]] std::optional<std::string> commit_of(const std::string& revision) const;
  /// Returns the snapshot of a revision if it holds everything that a run needs of a model.
  [[nodiscard]] std::optional<std::filesystem::path> whole_model(const std::string& revision) const;

  /// Creates the repository's folders. Throws sherd::Error(CannotWrite).
  void make_folders() const;
  /// Links a blob into a snapshot. Throws sherd::Error: CannotWrite, StorageIo.
  void link(const std::string& commit, const std::string& path, const std::string& digest) const;
  /// Records the commit of a revision. Throws sherd::Error: CannotWrite, StorageIo.
  void set_commit_of(const std::string& revision, const std::string& commit) const;
  /// Blocks until it holds the lock of this name, and holds it until the result is destroyed or
  /// this process ends. Hugging Face's libraries lock blobs in the same way. Calls `on_wait` before
  /// a wait. Returns no descriptor if the file system has no locks. Throws
  /// sherd::Error(CannotWrite).
  [[nodiscard]] sherd::files::FileDescriptor lock(const std::string& name,
                                                  const std::function<void()>& on_wait) const;

 private:
  std::filesystem::path cache_;
  std::filesystem::path folder_;
};

/// Returns 16 hexadecimal digits that are unique to this process.
[[nodiscard]] std::string random_suffix();

}  // namespace llm::hub
