#pragma once
// Where what can be made again is kept between runs.

#include <filesystem>
#include <string>

namespace sherd::files {

/// `sherd/NAME` in $XDG_CACHE_HOME, else in ~/.cache; empty without those two. Not created.
[[nodiscard]] std::filesystem::path cache_folder(const std::string& name);

}  // namespace sherd::files
