#include "llm/track/jsonl_log.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

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

JsonlLog::JsonlLog(const std::string& path, std::int64_t steps_done, Warn warn)
    : path_(path),
      warn_(std::move(warn)),
      file_(open_log(path, steps_done)),
      synced_(Clock::now()) {}

JsonlLog::~JsonlLog() {
  try {
    sync();
  } catch (const Error&) {
    // A finished run does not fail because the end of its log cannot be flushed.
  }
}

template <class Work>
void JsonlLog::if_there_is_room(const Work& work) {
  try {
    work();
  } catch (const files::NoRoom& error) {
    if (const Warn warn = std::exchange(warn_, {})) {
      warn("the log '" + path_ + "' lacks records: " + error.what() +
           ". The run goes on, and they follow when there is room; summary.json counts those that "
           "are lost.");
    }
  } catch (const Error& error) {
    throw Error(ExitCode::StorageIo,
                "writing the log '" + path_ + "' failed: " + error.what() + ".");
  }
}

void JsonlLog::write_waiting() {
  while (!waiting_.empty()) {
    file_.append(waiting_.front());
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
    ++unsynced_;
  }
}

// Where room is found only now, as over a network, what the system could not store is gone.
void JsonlLog::sync_now() {
  synced_ = Clock::now();
  const std::int64_t lines = std::exchange(unsynced_, 0);
  try {
    file_.sync();
  } catch (const files::NoRoom&) {
    dropped_ += lines;
    throw;
  }
}

void JsonlLog::write(const std::string& json) {
  constexpr std::chrono::seconds kSyncEvery{1};
  constexpr std::size_t kMostWaiting_bytes = std::size_t{4} << 20;
  waiting_.push_back(json + '\n');
  waiting_bytes_ += waiting_.back().size();
  if_there_is_room([&] {
    write_waiting();
    if (Clock::now() - synced_ >= kSyncEvery) {
      sync_now();
    }
  });
  while (waiting_bytes_ > kMostWaiting_bytes) {
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
    ++dropped_;
  }
}

void JsonlLog::sync() {
  if_there_is_room([&] {
    write_waiting();
    sync_now();
  });
}

}  // namespace llm::track
