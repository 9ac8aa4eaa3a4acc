#pragma once
// A limit of what a process may hold in memory: a control group's, or else that of its data.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "files/control_group.h"

namespace sherd::test {

/// Of a process that this one forks. A control group of the kernel below this process's own, of
/// version 1 or 2, where this process may make one; what goes beyond it is killed. Else
/// RLIMIT_DATA, under which an allocation is refused.
class MemoryLimit {
 public:
  explicit MemoryLimit(long bytes) : bytes_(bytes) {
    const std::filesystem::path own = files::control_groups("memory").front();
    group_ = own / ("sherd-test-" + std::to_string(::getpid()));
    std::error_code refused;
    std::filesystem::create_directory(group_, refused);
    if (refused || !(limits("memory.limit_in_bytes") || limits("memory.max"))) {
      remove();
    }
  }
  ~MemoryLimit() { remove(); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  /// For the test's log.
  [[nodiscard]] std::string name() const {
    return group_.empty() ? "RLIMIT_DATA" : "a control group (" + file_ + ")";
  }
  /// How a process ends that goes beyond it, where an allocation that is refused ends it with
  /// `code`.
  [[nodiscard]] int code_beyond(int code) const { return group_.empty() ? code : 128 + SIGKILL; }

  /// From now on this process is limited; called in the forked one.
  void enter() const {
    if (group_.empty()) {
      const rlimit limit{static_cast<rlim_t>(bytes_), static_cast<rlim_t>(bytes_)};
      ::setrlimit(RLIMIT_DATA, &limit);
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // else it would outlive a test that is ended, in its group
    std::ofstream(group_ / "cgroup.procs") << ::getpid();
  }

 private:
  [[nodiscard]] bool limits(const std::string& file) {
    file_ = file;
    std::ofstream out;
    out.open(group_ / file, std::ios::in | std::ios::out);  // not made where it is not there
    out << bytes_ << std::flush;
    return out.good();
  }
  void remove() {
    std::error_code ignored;
    if (!group_.empty()) {
      std::filesystem::remove(group_, ignored);
    }
    group_.clear();
  }

  long bytes_;
  std::filesystem::path group_;
  std::string file_;
};

}  // namespace sherd::test
