#include "llm/io/durable_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

#include "sherd/error.h"

namespace llm::io {
namespace {

using sherd::Error;
using sherd::ExitCode;

// An open descriptor, closed at the end of its scope.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : value_(::open(path.c_str(), flags, 0644)) {}
  ~Descriptor() {
    if (value_ >= 0) {
      ::close(value_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int value() const { return value_; }

 private:
  int value_;
};

[[noreturn]] void fail(ExitCode code, const std::string& path) {
  throw Error(code, path + ": cannot be written: " + std::strerror(errno));
}

void write_and_sync(const std::string& path, std::string_view content) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  if (file.value() < 0) {
    fail(ExitCode::CannotWrite, path);
  }
  while (!content.empty()) {
    const ssize_t written = ::write(file.value(), content.data(), content.size());
    if (written < 0 && errno != EINTR) {
      fail(ExitCode::StorageIo, path);
    }
    content.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
  }
  if (::fsync(file.value()) != 0) {
    fail(ExitCode::StorageIo, path);
  }
}

}  // namespace

void write_durable_file(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp-" + std::to_string(::getpid());
  try {
    write_and_sync(temporary, content);
    if (std::rename(temporary.c_str(), path.c_str()) != 0) {
      fail(ExitCode::CannotWrite, path);
    }
  } catch (const Error&) {
    std::remove(temporary.c_str());
    throw;
  }
  const std::string folder = std::filesystem::absolute(path).parent_path();
  const Descriptor directory(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory.value() < 0 || ::fsync(directory.value()) != 0) {
    fail(ExitCode::StorageIo, folder);
  }
}

}  // namespace llm::io
