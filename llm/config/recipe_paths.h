#pragma once
// Recipes that run from any folder.

#include <filesystem>
#include <string>

namespace llm::config {

/// Where a path leads that the file `recipe` gives: from the working folder, as it is. But what
/// begins with recipes/, and is not there, is looked for beside the recipe, if that lies in a
/// folder recipes: what ships together is found together.
[[nodiscard]] std::string path_in_recipe(const std::string& path,
                                         const std::filesystem::path& recipe);

}  // namespace llm::config
