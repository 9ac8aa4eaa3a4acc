#include "llm/plan/disk_rate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "files/file_descriptor.h"
#include "llm/plan/free_space.h"
#include "llm/setup/load_model.h"
#include "sherd/error.h"

namespace llm::plan {

namespace {

constexpr std::size_t kTrialBytes = std::size_t{8} << 20;

constexpr double kSecondsOfAStep = 60;
constexpr double kSavesOfAStop = 3;
constexpr double kMostSecondsOfAStop = 1e6;

std::filesystem::path existing_folder(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::absolute(folder, ignored);
  while (path.has_relative_path() && !std::filesystem::is_directory(path, ignored)) {
    path = path.parent_path();
  }
  return path;
}

bool write_durably(int file, const std::vector<char>& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(file, bytes.data() + done, bytes.size() - done);
    if (put <= 0) {
      return false;
    }
    done += static_cast<std::size_t>(put);
  }
  return ::fdatasync(file) == 0;
}

}  // namespace

std::optional<double> disk_bytes_per_second(const std::string& folder) {
  std::string name = (existing_folder(folder) / ".rate-XXXXXX").string();
  const sherd::files::FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) {
    return std::nullopt;
  }
  ::unlink(name.c_str());
  const std::vector<char> bytes(kTrialBytes, 's');
  const auto begin = std::chrono::steady_clock::now();
  if (!write_durably(file.get(), bytes)) {
    return std::nullopt;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kTrialBytes) / std::max(took.count(), 1e-6);
}

std::optional<int> seconds_to_stop(const config::RunConfig& config) {
  try {
    const setup::ModelShape shape = setup::model_shape(setup::with_adapter_folder(config));
    const auto save = expected_save_seconds(config.train.output,
                                            checkpoint_bytes(shape.trained, config.precision));
    return save ? std::optional(static_cast<int>(std::min(
                      kSecondsOfAStep + kSavesOfAStop * std::ceil(*save), kMostSecondsOfAStop)))
                : std::nullopt;
  } catch (const sherd::Error&) {
    return std::nullopt;
  }
}

std::optional<double> expected_save_seconds(const std::string& folder, std::int64_t bytes) {
  const auto rate = disk_bytes_per_second(folder);
  return rate ? std::optional(static_cast<double>(bytes) / *rate) : std::nullopt;
}

}  // namespace llm::plan
