#include "llm/inputs/store_lock.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sherd/error.h"

namespace llm::inputs {

namespace {

using Clock = std::chrono::steady_clock;

// What a lock file shows of its holder: it changes as long as the holder lives.
struct Sign {
  std::string progress;
  std::int64_t inode = 0;
  std::int64_t seconds = 0;
  std::int64_t nanoseconds = 0;
  bool operator==(const Sign&) const = default;
};

Sign sign_of(const std::filesystem::path& path) {
  const sherd::files::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    return {};
  }
  std::array<char, 256> bytes{};
  const ssize_t size = ::pread(file.get(), bytes.data(), bytes.size(), 0);
  const std::string text(bytes.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return {text.substr(0, text.find('\n')), static_cast<std::int64_t>(status.st_ino),
          status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

}  // namespace

StoreLock::StoreLock(std::filesystem::path path, const std::function<bool()>& is_done,
                     const std::function<void(const std::string& progress)>& waits,
                     const Times& times)
    : path_(std::move(path)) {
  Sign seen;
  auto since = Clock::now();
  while (!try_to_take()) {
    if (is_done()) {
      return;
    }
    const Sign now = sign_of(path_);
    if (now != seen) {
      seen = now;
      since = Clock::now();
    }
    waits(now.progress);
    if (Clock::now() - since > times.patience && sign_of(path_) == seen) {
      std::error_code ignored;
      std::filesystem::remove(path_, ignored);  // its holder finds that out
      taken_over_ = true;
      since = Clock::now();
    } else {
      std::this_thread::sleep_for(times.look);
    }
  }
  thread_ = std::thread([this, interval = times.touch] { touch_until_the_end(interval); });
}

bool StoreLock::try_to_take() {
  sherd::files::FileDescriptor file(
      ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (file.get() < 0) {
    if (errno == ENOENT) {
      return false;
    }
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       fmt::format("{}: {}", path_.string(), std::strerror(errno)));
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return false;
    }
    // Without locks several processes would write the same store.
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       fmt::format("{}: the file system has no file locks: {}", path_.string(),
                                   std::strerror(errno)));
  }
  file_ = std::move(file);
  if (!is_at_its_path()) {
    file_.close();
    return false;
  }
  return true;
}

StoreLock::~StoreLock() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  if (file_.get() >= 0 && is_at_its_path()) {
    ::unlink(path_.c_str());  // before the lock is given up: the next one makes its own
  }
}

bool StoreLock::is_at_its_path() const {
  struct stat held {};
  struct stat named {};
  return ::fstat(file_.get(), &held) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

void StoreLock::tell(const std::string& progress) {
  const std::lock_guard lock(mutex_);
  progress_ = progress;
}

void StoreLock::touch_until_the_end(std::chrono::milliseconds interval) {
  std::unique_lock lock(mutex_);
  for (; !ends_; changed_.wait_for(lock, interval)) {
    const std::string line = progress_ + "\n";
    // Written also when it is the same, since that changes the file's time.
    if (::pwrite(file_.get(), line.data(), line.size(), 0) < 0) {
      continue;
    }
  }
}

void StoreLock::require_held() const {
  if (!is_at_its_path()) {
    throw sherd::Error(
        sherd::ExitCode::StorageIo,
        fmt::format("{}: another process took this lock over, since this one was silent for too "
                    "long. Start the same command again.",
                    path_.string()));
  }
}

}  // namespace llm::inputs
