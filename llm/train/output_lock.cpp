#include "llm/train/output_lock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "sherd/error.h"

namespace llm::train {

namespace fs = std::filesystem;

namespace {

using sherd::Error;
using sherd::ExitCode;

constexpr std::chrono::milliseconds kPatience{2000};
constexpr std::chrono::milliseconds kPause{50};

[[noreturn]] void cannot_write_output(const fs::path& output, const std::string& why) {
  throw Error(ExitCode::CannotWrite,
              fmt::format("cannot write to the output folder '{}': {}. Set train.output to another "
                          "folder.",
                          output.string(), why));
}

// f_type of statfs: NFS, SMB, CIFS, Ceph, Lustre, GPFS, BeeGFS.
constexpr std::array<unsigned, 7> kNetworkFileSystems{
    0x6969U, 0xfe534d42U, 0xff534d42U, 0x00c36400U, 0x0bd00bd0U, 0x47504653U, 0x19830326U};

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

// "process 4711 on host node7 since 2026-02-03 04:05:06 UTC".
std::string own_name() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return fmt::format("process {} on host {} since {}", ::getpid(), host_name(), time.data());
}

// What the holder wrote into the file, with unprintable bytes replaced.
std::string holder_of(int file) {
  std::array<char, 256> bytes{};
  const ssize_t size = ::pread(file, bytes.data(), bytes.size(), 0);
  std::string text;
  for (ssize_t i = 0; i < size && bytes[static_cast<std::size_t>(i)] != '\n'; ++i) {
    const char c = bytes[static_cast<std::size_t>(i)];
    text += c >= ' ' && c <= '~' ? c : '?';
  }
  return text.empty() ? "a process that has not written its name" : text;
}

struct Holder {
  std::string name;
  bool may_be_dead = false;  // a process of another host
};

Holder holder_at(const fs::path& path, const std::function<bool(int)>& shares) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  Holder holder{holder_of(file)};
  const bool is_elsewhere =
      holder.name.starts_with("process ") &&
      holder.name.find(" on host " + host_name() + " since ") == std::string::npos;
  if (file >= 0) {
    holder.may_be_dead = is_elsewhere && shares(file);
    ::close(file);
  }
  return holder;
}

// The folders of `path` that are not there yet, outermost first.
std::vector<fs::path> missing_folders(fs::path path) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (; !path.empty() && !fs::exists(path, ignored); path = path.parent_path()) {
    if (path.has_filename()) {
      missing.insert(missing.begin(), path);
    }
  }
  return missing;
}

// Locks are unavailable here, as on some network file systems.
bool gives_no_locks(int error) {
  return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
}

}  // namespace

bool OutputLock::is_on_network(int file) {
  struct statfs system {};
  return ::fstatfs(file, &system) == 0 &&
         std::find(kNetworkFileSystems.begin(), kNetworkFileSystems.end(),
                   static_cast<unsigned>(system.f_type)) != kNetworkFileSystems.end();
}

OutputLock::OutputLock(const fs::path& output, const OtherHosts& hosts)
    : output_(output), path_(output / "lock"), made_(missing_folders(output)) {
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::milliseconds patience = kPatience;
  while (!try_to_take()) {
    const Holder holder = holder_at(path_, hosts.shares);
    if (holder.may_be_dead && patience < hosts.lease) {
      patience = hosts.lease;
      hosts.say(
          fmt::format("the output folder is locked by {}: if that host is dead, its file server "
                      "releases the lock within {} s; waiting",
                      holder.name, hosts.lease.count() / 1000));
    }
    if (std::chrono::steady_clock::now() - begin >= patience) {
      throw Error(ExitCode::CannotWrite,
                  fmt::format("the output folder '{}' is locked by another run: {}. Wait for it, "
                              "stop it, or set train.output to another folder.",
                              output.string(), holder.name));
    }
    std::this_thread::sleep_for(kPause);
  }
}

// False if another process holds the lock, or took the file away in between.
bool OutputLock::try_to_take() {
  std::error_code error;
  fs::create_directories(output_, error);
  if (error || !fs::is_directory(output_)) {
    cannot_write_output(output_, error ? error.message() : "a file of that name is there");
  }
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file_ < 0 && errno != ENOENT) {
    const std::string why = errno == ELOOP
                                ? "'lock' is a link, and a run does not follow links there"
                                : std::strerror(errno);
    remove();
    cannot_write_output(output_, why);
  }
  bool taken = file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) == 0;
  if (file_ >= 0 && !taken && gives_no_locks(errno)) {
    warning_ =
        fmt::format("the output folder cannot be locked ({}): make sure that no other run uses it",
                    std::strerror(errno));
    taken = true;
  }
  if (!taken || !is_at_its_path()) {
    if (file_ >= 0) {
      ::close(file_);
    }
    file_ = -1;
    return false;
  }
  const std::string name = own_name() + "\n";
  if (::ftruncate(file_, 0) != 0 ||
      ::pwrite(file_, name.data(), name.size(), 0) != static_cast<ssize_t>(name.size())) {
    const std::string why = std::strerror(errno);
    remove();
    cannot_write_output(output_, why);
  }
  return true;
}

OutputLock::~OutputLock() {
  remove();
}

bool OutputLock::is_at_its_path() const {
  struct stat held {};
  struct stat named {};
  return ::fstat(file_, &held) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

void OutputLock::check_folder_is_there() const {
  if (!is_at_its_path()) {
    throw Error(ExitCode::StorageIo, "the output folder '" + output_.string() +
                                         "' was removed or replaced during the run: its log and "
                                         "checkpoints are gone. Start the run again.");
  }
}

void OutputLock::remove() noexcept {
  if (file_ >= 0) {
    if (is_at_its_path()) {
      ::unlink(path_.c_str());  // before the lock is given up: the next one makes its own
    }
    ::close(file_);
    file_ = -1;
  }
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
    ::rmdir(folder->c_str());  // fails, as intended, if it is not empty
  }
}

}  // namespace llm::train
