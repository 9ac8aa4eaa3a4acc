#include "llm/track/progress.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "files/quiet_thread.h"

namespace llm::track {

Progress::Progress(Output output, Times times)
    : output_(std::move(output)), times_(times), said_(Clock::now()) {
  try {
    thread_ = sherd::files::start_quiet_thread([this] { watch(); });
  } catch (const std::system_error&) {
    // Lines pass all the same.
  }
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    clear_live();
    changed_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Progress::say(const std::string& line) {
  aside([&] { output_.say(line); });
}

void Progress::warn(const std::string& line) {
  aside([&] { (output_.warn ? output_.warn : output_.say)(line); });
}

void Progress::aside(const std::function<void()>& write) {
  const std::lock_guard lock(mutex_);
  write_aside(write);
}

bool Progress::try_aside(const std::function<void()>& write) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) {
    write_aside(write);
  }
  return lock.owns_lock();
}

void Progress::write_aside(const std::function<void()>& write) {
  clear_live();
  write();
  said_ = Clock::now();
}

void Progress::begin(const std::string& what) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  works_.push_back({what, "", now, now});
}

void Progress::set(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (!works_.empty()) {
    works_.back() = {what, "", works_.back().begun, Clock::now()};
  }
}

void Progress::count(std::int64_t done, std::int64_t total, const std::string& unit) {
  const std::lock_guard lock(mutex_);
  if (!works_.empty()) {
    const std::string of =
        total > 0 ? fmt::format(" of {}", fmt::group_digits(total)) : std::string();
    works_.back().counted = fmt::format(", {}{} {}", fmt::group_digits(done), of, unit);
  }
}

void Progress::end() {
  const std::lock_guard lock(mutex_);
  clear_live();
  if (!works_.empty()) {
    works_.pop_back();
  }
  if (!works_.empty()) {
    works_.back().since = Clock::now();
  }
}

void Progress::watch() {
  const auto step = output_.show ? std::min(times_.refresh, times_.silence) : times_.silence / 20;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, step, [this] { return ends_; })) {
    look(Clock::now());
  }
}

void Progress::look(Clock::time_point now) {
  if (works_.empty()) {
    return;
  }
  if (output_.show) {
    if (is_live_ || now - std::max(said_, works_.back().begun) >= times_.before_live) {
      is_live_ = true;
      output_.show(text(now));
    }
  } else if (now - said_ >= times_.silence - times_.silence / 20) {
    output_.say(text(now));
    said_ = now;
  }
}

void Progress::clear_live() {
  if (std::exchange(is_live_, false)) {
    output_.show("");
  }
}

std::string Progress::text(Clock::time_point now) const {
  const Work& work = works_.back();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - work.since).count();
  return fmt::format("{}{} … {} s", work.what, work.counted, seconds);
}

}  // namespace llm::track
