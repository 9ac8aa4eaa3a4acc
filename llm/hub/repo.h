#pragma once
// Names on a hub.

#include <string>

namespace llm::hub {

enum class RepoKind { Model, Dataset };

/// A repository of a hub.
struct Repo {
  RepoKind kind = RepoKind::Model;
  std::string name;  ///< "ORG/NAME"
};

/// Whether a text can be the name of a repository: ORG/NAME, by the hub's rules for names.
[[nodiscard]] bool is_repo_name(const std::string& text);

/// Throws sherd::Error(Usage) for what is no name of a repository.
[[nodiscard]] Repo repo_of(RepoKind kind, const std::string& name);

/// Throws sherd::Error(Usage) for what can be no branch, tag or commit.
void check_revision(const std::string& revision);

/// Whether this is a commit's full hash, which never means anything else.
[[nodiscard]] bool is_commit(const std::string& revision);

/// Whether a file's name in a repository stays in its folder: relative, and without `..`.
[[nodiscard]] bool is_safe_path(const std::string& path);

/// "models--ORG--NAME": the repository's folder in the cache.
[[nodiscard]] std::string folder_name(const Repo& repo);

/// Where the hub's interface tells of the repository: ENDPOINT/api/models/ORG/NAME.
[[nodiscard]] std::string api_url(const std::string& endpoint, const Repo& repo);

/// The page of the repository, above its files: ENDPOINT/ORG/NAME.
[[nodiscard]] std::string page_url(const std::string& endpoint, const Repo& repo);

/// "model" or "data set".
[[nodiscard]] std::string name_of(RepoKind kind);

}  // namespace llm::hub
