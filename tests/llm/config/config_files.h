#pragma once
// Configuration files of a test, in a folder that is removed afterwards.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <unistd.h>

#include "gtest/gtest.h"
#include "llm/config/run_config.h"
#include "sherd/error.h"

namespace llm::config::testing {

/// What every configuration needs; the first line is 1.
inline const std::string kRequired = "model.path = 'm'\ndata.train = 't'\ntrain.output = 'o'\n";
inline const std::vector<std::string> kRequiredFlags = {"--model.path=m", "--data.train=t",
                                                        "--train.output=o"};

class ConfigFiles : public ::testing::Test {
 protected:
  ConfigFiles()
      : folder_(std::filesystem::temp_directory_path() /
                ("sherd_config_test_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ConfigFiles() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::filesystem::path write(std::string_view text) const {
    const auto path = folder_ / "run.toml";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  /// The message of `load`, with the folder cut off; empty if it succeeds. Checks the exit code.
  [[nodiscard]] std::string faults(const std::optional<std::filesystem::path>& file,
                                   const std::vector<std::string>& flags = {}) const {
    try {
      static_cast<void>(load(file, flags));
      return "";
    } catch (const sherd::Error& error) {
      EXPECT_EQ(error.code(), sherd::ExitCode::Usage);
      std::string text = error.what();
      const std::string prefix = folder_.string() + "/";
      for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix)) {
        text.erase(at, prefix.size());
      }
      return text;
    }
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace llm::config::testing
