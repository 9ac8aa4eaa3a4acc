#include "llm/track/jsonl_log.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "files/output.h"
#include "files/quiet_thread.h"
#include "sherd/error.h"

namespace llm::track {

namespace {

namespace files = sherd::files;
using sherd::Error;
using sherd::ExitCode;

// A line that is not a record (truncated when a run was killed) is dropped as well.
bool is_kept(const std::string& line, std::int64_t steps_done) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.contains("step") && record["step"].is_number_integer() &&
         record["step"].get<std::int64_t>() <= steps_done;
}

// Rewrites the lines that are kept; in parts, since a log may be larger than the memory.
void keep_lines(const std::string& path, std::int64_t steps_done) {
  constexpr std::size_t kPart_bytes = std::size_t{1} << 20;
  files::NewFile kept(path);
  std::uint64_t written = 0;
  std::string part;
  const auto write_part = [&] {
    kept.write(written, part.data(), part.size());
    written += part.size();
    part.clear();
  };
  std::ifstream old(path);
  for (std::string line; steps_done > 0 && std::getline(old, line);) {
    if (is_kept(line, steps_done)) {
      part += line + '\n';
    }
    if (part.size() >= kPart_bytes) {
      write_part();
    }
  }
  write_part();
  kept.commit();
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
      keep_lines(path, steps_done);
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
      syncer_(sherd::files::start_quiet_thread([this] { sync_in_turns(); })) {}

JsonlLog::~JsonlLog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  syncer_.join();
  try {
    sync();
  } catch (const Error&) {
    // A finished run does not fail because the end of its log cannot be flushed.
  }
}

std::int64_t JsonlLog::missing_records() const {
  const std::lock_guard lock(mutex_);
  return dropped_ + static_cast<std::int64_t>(waiting_.size());
}

template <class Work>
void JsonlLog::if_there_is_room(const Work& work) {
  try {
    work();
  } catch (const sherd::NoRoom& error) {
    if (warn_ && !std::exchange(told_full_, true)) {
      warn_("the log '" + path_ + "' lacks records: " + error.what() +
            ". The run continues, and they are written when there is room; summary.json counts "
            "those that are lost.");
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
    const std::lock_guard lock(mutex_);
    ++unsynced_;
  }
  changed_.notify_all();
}

// Where room is found only now, as over a network, what the system could not store is gone.
void JsonlLog::sync_now() {
  std::unique_lock lock(mutex_);
  const std::int64_t lines = std::exchange(unsynced_, 0);
  lock.unlock();
  try {
    file_.sync();
  } catch (const sherd::NoRoom&) {
    lock.lock();
    dropped_ += lines;
    throw;
  }
}

void JsonlLog::sync_in_turns() {
  constexpr std::chrono::seconds kSyncEvery{1};
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || unsynced_ > 0; });
    if (ends_) {
      return;  // the destructor makes the rest durable
    }
    lock.unlock();
    std::exception_ptr fault;
    try {
      sync_now();
    } catch (const Error&) {
      fault = std::current_exception();
    }
    lock.lock();
    fault_ = fault ? fault : fault_;
    changed_.wait_for(lock, kSyncEvery, [this] { return ends_; });
  }
}

void JsonlLog::rethrow_fault_of_thread() {
  std::unique_lock lock(mutex_);
  if (const std::exception_ptr fault = std::exchange(fault_, nullptr)) {
    lock.unlock();
    std::rethrow_exception(fault);
  }
}

void JsonlLog::drop_oldest() {
  constexpr std::size_t kMostWaiting_bytes = std::size_t{4} << 20;
  std::int64_t lost = 0;
  for (; waiting_bytes_ > kMostWaiting_bytes; ++lost) {
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  if (lost > 0) {
    const std::lock_guard lock(mutex_);
    dropped_ += lost;
  }
  if (lost > 0 && warn_ && !std::exchange(told_loss_, true)) {
    warn_("the log '" + path_ +
          "' loses records: 4 MiB of them wait for room, and the oldest are dropped. summary.json "
          "counts them.");
  }
}

void JsonlLog::write(const std::string& json) {
  waiting_.push_back(json + '\n');
  waiting_bytes_ += waiting_.back().size();
  if_there_is_room([this] { rethrow_fault_of_thread(); });
  if_there_is_room([this] {
    const bool waited = waiting_.size() > 1;
    write_waiting();
    told_full_ = told_full_ && !waited;
  });
  drop_oldest();
}

void JsonlLog::sync() {
  if_there_is_room([this] { rethrow_fault_of_thread(); });
  if_there_is_room([this] {
    write_waiting();
    sync_now();
  });
}

}  // namespace llm::track
