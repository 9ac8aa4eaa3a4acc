#include "files/cache_folder.h"

#include <cstdlib>

namespace sherd::files {

std::filesystem::path cache_folder(const std::string& name) {
  const auto variable = [](const char* of) {
    const char* value = std::getenv(of);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache / "sherd" / name;
  }
  const auto home = variable("HOME");
  return home.empty() ? home : home / ".cache/sherd" / name;
}

}  // namespace sherd::files
