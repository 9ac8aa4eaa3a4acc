#include "llm/track/jsonl_log.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "files/output.h"
#include "sherd/error.h"

namespace llm::track {

namespace {

namespace files = sherd::files;
using Clock = std::chrono::steady_clock;
using sherd::Error;
using sherd::ExitCode;

// A line that is not a record (truncated when a run was killed) is dropped as well.
bool is_kept(const std::string& line, std::int64_t steps_done) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.contains("step") && record["step"].is_number_integer() &&
         record["step"].get<std::int64_t>() <= steps_done;
}

std::string kept_lines(const std::string& path, std::int64_t steps_done) {
  std::string kept;
  std::ifstream old(path);
  for (std::string line; steps_done > 0 && std::getline(old, line);) {
    if (is_kept(line, steps_done)) {
      kept += line + '\n';
    }
  }
  return kept;
}

// Only a regular file can start over: what was written to a pipe or device stays written.
bool begins_anew(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  return !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
}

files::AppendedFile open_log(const std::string& path, std::int64_t steps_done) {
  try {
    if (begins_anew(path)) {
      files::write_file(path, kept_lines(path, steps_done));
    }
    return files::AppendedFile(path);
  } catch (const Error& error) {
    throw Error(ExitCode::CannotWrite, "cannot write the log '" + path + "': " + error.what() +
                                           ". Set log.sink[0].path to a file that can be written.");
  }
}

}  // namespace

JsonlLog::JsonlLog(const std::string& path, std::int64_t steps_done)
    : path_(path), file_(open_log(path, steps_done)), synced_(Clock::now()) {}

JsonlLog::~JsonlLog() {
  try {
    file_.sync();
  } catch (const Error&) {
    // A finished run does not fail because the end of its log cannot be flushed.
  }
}

void JsonlLog::write(const std::string& json) {
  constexpr std::chrono::seconds kSyncEvery{1};
  try {
    file_.append(json + '\n');
    if (const auto now = Clock::now(); now - synced_ >= kSyncEvery) {
      file_.sync();
      synced_ = now;
    }
  } catch (const Error& error) {
    throw Error(ExitCode::StorageIo,
                "writing the log '" + path_ + "' failed: " + error.what() + ".");
  }
}

void JsonlLog::sync() {
  try {
    file_.sync();
    synced_ = Clock::now();
  } catch (const Error& error) {
    throw Error(ExitCode::StorageIo,
                "writing the log '" + path_ + "' to the disk failed: " + error.what() + ".");
  }
}

}  // namespace llm::track
