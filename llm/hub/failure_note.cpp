#include "llm/hub/failure_note.h"

#include <cstdint>
#include <ctime>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>
#include <unistd.h>

namespace llm::hub {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNoteBytes = 16'384;

// The same while this host runs.
std::string boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::int64_t milliseconds_now() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// When this process began, on the clock of milliseconds_now(); late by at most a tick.
std::int64_t milliseconds_at_start() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream words(text.substr(text.rfind(')') + 1));  // the program's name may hold spaces
  constexpr int kStartTime = 22;
  constexpr int kFirstAfterName = 3;
  std::string word;
  for (int field = kFirstAfterName; field <= kStartTime; ++field) {
    words >> word;
  }
  const std::int64_t ticks_a_second = ::sysconf(_SC_CLK_TCK);
  return (std::strtoll(word.c_str(), nullptr, 10) + 1) * 1000 / ticks_a_second;
}

}  // namespace

void take_over_failure(int lock_fd, const std::string& attempt) {
  std::string text(kMaxNoteBytes, '\0');
  const ssize_t bytes = ::pread(lock_fd, text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  const json note = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto field = [&](const char* name) {
    return note.is_object() && note.contains(name) && note[name].is_string()
               ? note[name].get<std::string>()
               : "";
  };
  const auto number = [&](const char* name) {
    return note.is_object() && note.contains(name) && note[name].is_number_integer()
               ? note[name].get<std::int64_t>()
               : 0;
  };
  if (field("attempt") == attempt && field("boot") == boot() &&
      number("milliseconds") > milliseconds_at_start()) {
    throw FailedElsewhere(static_cast<sherd::ExitCode>(number("code")), field("message"),
                          field("run"));
  }
}

void note_failure(int lock_fd, const std::string& attempt, const std::string& run,
                  const sherd::Error& failure) {
  const json note = {{"attempt", attempt},
                     {"run", run},
                     {"boot", boot()},
                     {"milliseconds", milliseconds_now()},
                     {"code", static_cast<int>(failure.code())},
                     {"message", failure.what()}};
  const std::string text = note.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxNoteBytes || ::ftruncate(lock_fd, 0) != 0 ||
      ::pwrite(lock_fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return;
  }
}

}  // namespace llm::hub
