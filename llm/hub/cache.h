#pragma once
// The cache of Hugging Face's libraries, in their layout, so that what one of them fetched serves
// all: refs/REVISION names a commit, snapshots/COMMIT/FILE links to blobs/HASH.

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
  /// The commit that a revision is known to be; none if it is not.
  [[nodiscard]] std::optional<std::string> commit_of(const std::string& revision) const;
  /// The snapshot of a revision, if it holds all that a run needs of a model.
  [[nodiscard]] std::optional<std::filesystem::path> whole_model(const std::string& revision) const;

  /// Makes the repository's folders. Throws sherd::Error(CannotWrite).
  void make_folders() const;
  /// Gives a blob its name in a snapshot. Throws sherd::Error: CannotWrite, StorageIo.
  void link(const std::string& commit, const std::string& path, const std::string& digest) const;
  /// Notes what a revision is. Throws sherd::Error: CannotWrite, StorageIo.
  void set_commit_of(const std::string& revision, const std::string& commit) const;
  /// Waits until no other process holds the lock of this name, and holds it until the answer is
  /// destroyed or this process ends. Hugging Face's libraries lock a blob by its hash in the same
  /// way. `on_wait` is called before a wait. No descriptor where the file system has no locks.
  /// Throws sherd::Error(CannotWrite).
  [[nodiscard]] sherd::files::FileDescriptor lock(const std::string& name,
                                                  const std::function<void()>& on_wait) const;

 private:
  std::filesystem::path cache_;
  std::filesystem::path folder_;
};

/// 16 hexadecimal digits that no other process will have.
[[nodiscard]] std::string random_suffix();

}  // namespace llm::hub
