#include "llm/config/recipe_paths.h"

#include <system_error>

namespace llm::config {

std::string path_in_recipe(const std::string& path, const std::filesystem::path& recipe) {
  namespace fs = std::filesystem;
  constexpr const char* kFolder = "recipes";
  std::error_code error;
  const fs::path place = fs::absolute(recipe, error).lexically_normal();
  if (error || path.empty() || *fs::path(path).begin() != kFolder || fs::exists(path, error)) {
    return path;
  }
  for (fs::path folder = place.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (folder.filename() == kFolder) {
      const fs::path beside = folder.parent_path() / path;
      return fs::exists(beside, error) ? beside.string() : path;
    }
  }
  return path;
}

}  // namespace llm::config
