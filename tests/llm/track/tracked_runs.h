#pragma once
// Runs that are tracked in tests, and bytes of files read back.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "llm/track/tracked_run.h"
#include "tests/support/temp_folder.h"

namespace llm::track {

using Variables = std::map<std::string, std::string>;

inline sherd::launch::EnvLookup environment_of(const Variables& variables) {
  return [variables](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

/// A run whose output is the folder `first` in `folder`.
inline TrackedRun run_in(const sherd::test::TempFolder& folder, const Variables& variables = {},
                         const config::LogSection& log = {}) {
  config::RunConfig config;
  config.model.path = "models/m";
  config.data.train = {{.path = "squad.json"}};
  config.train.output = (folder.path() / "first").string();
  config.log = log;
  std::filesystem::create_directories(config.train.output);
  return tracked_run(config, environment_of(variables));
}

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The only file or folder in `folder` whose name begins so.
inline std::filesystem::path only_in(const std::filesystem::path& folder,
                                     const std::string& prefix) {
  std::filesystem::path found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(prefix)) {
      found = found.empty() ? entry.path() : std::filesystem::path("two of " + prefix);
    }
  }
  return found;
}

inline std::uint64_t little_endian(const std::string& bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(bytes.at(at + i))) << (8 * i);
  }
  return value;
}

}  // namespace llm::track
