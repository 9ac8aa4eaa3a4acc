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

/// True if a text can be the name of a repository: ORG/NAME, by the hub's rules for names.
[[nodiscard]] bool is_repo_name(const std::string& text);

/// Throws sherd::Error(Usage) if it is not a name of a repository.
[[nodiscard]] Repo repo_of(RepoKind kind, const std::string& name);

/// Throws sherd::Error(Usage) if it cannot be a branch, tag or commit.
void check_revision(const std::string& revision);

/// True for the full hash of a commit.
[[nodiscard]] bool is_commit(const std::string& revision);

/// True if a file's name stays inside the repository: relative, and without `..`.
[[nodiscard]] bool is_safe_path(const std::string& path);

/// "models--ORG--NAME": the repository's folder in the cache.
[[nodiscard]] std::string folder_name(const Repo& repo);

/// The URL of the repository in the hub's API: ENDPOINT/api/models/ORG/NAME.
[[nodiscard]] std::string api_url(const std::string& endpoint, const Repo& repo);

/// The web page of the repository: ENDPOINT/ORG/NAME.
[[nodiscard]] std::string page_url(const std::string& endpoint, const Repo& repo);

/// "model" or "data set".
[[nodiscard]] std::string name_of(RepoKind kind);

}  // namespace llm::hub
