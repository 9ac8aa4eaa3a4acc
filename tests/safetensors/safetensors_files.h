#pragma once
// Small files and folders for the tests of safetensors, and what an Error says.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>

#include <stdlib.h>  // mkdtemp

#include "sherd/error.h"

namespace sherd::test {

/// A folder that is removed with all in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sherd-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no temporary folder");
    }
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  [[nodiscard]] std::string path() const { return path_.string(); }
  /// How many files and folders it holds.
  [[nodiscard]] auto count() const {
    return std::distance(std::filesystem::directory_iterator(path_), {});
  }

 private:
  std::filesystem::path path_;
};

/// Writes a new file, in place of an old one: to cut and rewrite the old one would wait for the
/// disk on ext4.
inline void write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A safetensors file: the length of `header`, `header`, and `data_bytes` bytes 0, 1, 2, …
inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  std::string bytes;
  for (size_t byte = 0; byte < 8; ++byte) {
    bytes += static_cast<char>(uint64_t{header.size()} >> (8 * byte) & 0xff);
  }
  bytes += header;
  for (size_t byte = 0; byte < data_bytes; ++byte) {
    bytes += static_cast<char>(byte & 0xff);
  }
  return bytes;
}

/// What an action throws: "65: <message>" for an Error, "none" for nothing.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "none";
}

inline std::string data_path(const std::string& name) {
  return std::string(SHERD_TEST_SOURCE_DIR) + "/tests/data/" + name;
}

}  // namespace sherd::test
