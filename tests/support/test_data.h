#pragma once
// Where tests find their inputs.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace sherd::test {

/// The inputs that ship with the project.
inline std::filesystem::path data_folder() {
  return std::filesystem::path(SHERD_TEST_SOURCE_DIR) / "tests" / "data";
}

/// Larger inputs that do not (SHERD_TEST_DATA): a test that needs them skips itself, saying so,
/// where they are missing.
inline std::optional<std::filesystem::path> extra_data(const std::string& name) {
  const char* folder = std::getenv("SHERD_TEST_DATA");
  if (folder == nullptr || !std::filesystem::exists(std::filesystem::path(folder) / name)) {
    return std::nullopt;
  }
  return std::filesystem::path(folder) / name;
}

/// The bytes of a file.
inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace sherd::test

/// Skips the test unless SHERD_TEST_DATA holds `name`.
#define SHERD_NEEDS_EXTRA_DATA(name)                                                            \
  if (!::sherd::test::extra_data(name)) {                                                       \
    GTEST_SKIP() << "SKIPPED: needs " << (name) << " in the folder that SHERD_TEST_DATA names"; \
  }                                                                                             \
  static_assert(true, "a semicolon must follow")
