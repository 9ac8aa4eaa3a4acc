#include "llm/hub/repo.h"

#include <algorithm>
#include <cctype>

#include <fmt/core.h>

#include "sherd/error.h"

namespace llm::hub {
namespace {

using sherd::Error;
using sherd::ExitCode;

constexpr std::size_t kLongestName = 96;

bool is_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

// Of one half of ORG/NAME.
bool is_half(const std::string& text) {
  const auto is_allowed = [](char letter) {
    return is_word(letter) || letter == '-' || letter == '.';
  };
  return !text.empty() && text.size() <= kLongestName && is_word(text.front()) &&
         is_word(text.back()) && std::all_of(text.begin(), text.end(), is_allowed);
}

bool has_control_character(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; });
}

}  // namespace

bool is_repo_name(const std::string& text) {
  for (const char* const of_the_hub : {"models/", "datasets/", "spaces/"}) {
    if (text.starts_with(of_the_hub)) {
      return false;
    }
  }
  const std::size_t slash = text.find('/');
  return slash != std::string::npos && is_half(text.substr(0, slash)) &&
         is_half(text.substr(slash + 1)) && text.find("--") == std::string::npos &&
         text.find("..") == std::string::npos && !text.ends_with(".git");
}

Repo repo_of(RepoKind kind, const std::string& name) {
  if (!is_repo_name(name)) {
    throw Error(ExitCode::Usage,
                fmt::format("'{}' is not a name on a hub: give one like {}", name,
                            kind == RepoKind::Model ? "HuggingFaceTB/SmolLM2-135M-Instruct"
                                                    : "rajpurkar/squad with --dataset"));
  }
  return {kind, name};
}

void check_revision(const std::string& revision) {
  if (!is_safe_path(revision) || revision.find_first_of(" ~^:?*[") != std::string::npos) {
    throw Error(ExitCode::Usage,
                fmt::format("'{}' is not a revision: give a branch, a tag or a commit", revision));
  }
}

bool is_commit(const std::string& revision) {
  return revision.size() == 40 && std::all_of(revision.begin(), revision.end(), [](char letter) {
           return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f');
         });
}

bool is_safe_path(const std::string& path) {
  if (path.empty() || has_control_character(path) || path.find('\\') != std::string::npos) {
    return false;
  }
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") {
      return false;
    }
    begin = end + 1;
  }
  return true;
}

std::string folder_name(const Repo& repo) {
  std::string name = (repo.kind == RepoKind::Model ? "models--" : "datasets--") + repo.name;
  return name.replace(name.find('/'), 1, "--");
}

std::string api_url(const std::string& endpoint, const Repo& repo) {
  return endpoint + (repo.kind == RepoKind::Model ? "/api/models/" : "/api/datasets/") + repo.name;
}

std::string page_url(const std::string& endpoint, const Repo& repo) {
  return endpoint + (repo.kind == RepoKind::Model ? "/" : "/datasets/") + repo.name;
}

std::string name_of(RepoKind kind) {
  return kind == RepoKind::Model ? "model" : "data set";
}

}  // namespace llm::hub
