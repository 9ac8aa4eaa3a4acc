#include "llm/config/recipe_paths.h"

#include <system_error>

namespace llm::config {

namespace {

namespace fs = std::filesystem;

// A pattern of files counts by its folder.
bool is_there(const fs::path& path) {
  std::error_code ignored;
  const bool is_pattern = path.filename().string().find('*') != std::string::npos;
  return fs::exists(is_pattern ? path.parent_path() : path, ignored);
}

}  // namespace

std::string path_in_recipe(const std::string& path, const std::filesystem::path& recipe) {
  constexpr const char* kFolder = "recipes";
  std::error_code error;
  const fs::path place = fs::absolute(recipe, error).lexically_normal();
  if (error || path.empty() || *fs::path(path).begin() != kFolder || is_there(path)) {
    return path;
  }
  for (fs::path folder = place.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (folder.filename() == kFolder) {
      const fs::path beside = folder.parent_path() / path;
      return is_there(beside) ? beside.string() : path;
    }
  }
  return path;
}

}  // namespace llm::config
