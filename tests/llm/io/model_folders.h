#pragma once
// Model folders to break, and what comes of reading them.

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "sherd/error.h"

namespace llm::io {

inline const std::string kData = SHERD_TEST_SOURCE_DIR "/tests/data/";

/// A folder of its own that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "sherd-io-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_all(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Expects `read` to fail with the code and a message that has `text` in it.
inline void expect_error(const std::function<void()>& read, sherd::ExitCode code,
                         const std::string& text) {
  try {
    read();
    ADD_FAILURE() << "no error; expected: " << text;
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(text));
  }
}

}  // namespace llm::io
