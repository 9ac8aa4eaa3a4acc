#include "llm/track/jsonl_log.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "sherd/error.h"

namespace llm::track {

namespace {

using sherd::Error;
using sherd::ExitCode;

// A line that is no record (cut off when a run was killed) is dropped as well.
bool is_kept(const std::string& line, std::int64_t steps_done) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.contains("step") && record["step"].is_number_integer() &&
         record["step"].get<std::int64_t>() <= steps_done;
}

std::vector<std::string> kept_lines(const std::string& path, std::int64_t steps_done) {
  std::vector<std::string> kept;
  std::ifstream old(path);
  for (std::string line; steps_done > 0 && std::getline(old, line);) {
    if (is_kept(line, steps_done)) {
      kept.push_back(line);
    }
  }
  return kept;
}

[[noreturn]] void cannot_write(const std::string& path) {
  throw Error(ExitCode::CannotWrite, "cannot write the log '" + path +
                                         "': " + std::strerror(errno) +
                                         ". Set log.jsonl to a path that can be written.");
}

}  // namespace

JsonlLog::JsonlLog(const std::string& path, std::int64_t steps_done) : path_(path) {
  const std::vector<std::string> kept = kept_lines(path, steps_done);
  const std::string temporary = path + ".tmp";
  {
    std::ofstream renewed(temporary, std::ios::trunc);
    for (const std::string& line : kept) {
      renewed << line << '\n';
    }
    if (!renewed.flush()) {
      cannot_write(path);
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    cannot_write(path);
  }
  file_.open(path, std::ios::app);
  if (!file_) {
    cannot_write(path);
  }
}

void JsonlLog::write(const std::string& json) {
  file_ << json << '\n';
  if (!file_.flush()) {
    throw Error(ExitCode::StorageIo,
                "writing the log '" + path_ + "' failed: " + std::strerror(errno));
  }
}

void JsonlLog::sync() {
  const int file = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  const bool synced = file >= 0 && (::fsync(file) == 0 || errno == EINVAL);  // pipes, devices
  const int error = errno;
  if (file >= 0) {
    ::close(file);
  }
  if (!synced) {
    throw Error(ExitCode::StorageIo,
                "writing the log '" + path_ + "' to the disk failed: " + std::strerror(error));
  }
}

}  // namespace llm::track
