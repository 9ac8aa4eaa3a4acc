#include "comm/rank_place.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include <unistd.h>

namespace sherd::detail {

namespace {

// Empty if the link cannot be read.
std::string target_of(const char* link) {
  std::error_code ignored;
  return std::filesystem::read_symlink(link, ignored).string();
}

struct ProcessStatus {
  char state = 'X';  // ended, or not found
  uint64_t start = 0;
};

// /proc/PID/stat (proc_pid_stat(5)): the name, field 2, may hold spaces and brackets; the state is
// field 3, the start field 22.
ProcessStatus status_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return {};
  }
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStatus status;
  fields >> status.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) {
    fields >> skipped;
  }
  fields >> status.start;
  return status;
}

}  // namespace

RankPlace RankPlace::of_this_process() {
  const ProcessStatus status = status_of("self");
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string processes = target_of("/proc/self/ns/pid");
  const std::string networks = target_of("/proc/self/ns/net");
  RankPlace place;
  place.process = getpid();
  place.start = status.start;
  if (status.state != 'X' && !boot.empty() && !processes.empty() && !networks.empty()) {
    place.host = boot + "/" + processes + "/" + networks + "/" + std::to_string(geteuid());
  }
  return place;
}

RankPlace RankPlace::from_text(const std::string& text) {
  RankPlace place;
  std::istringstream(text) >> place.process >> place.start >> place.host;
  return place;
}

bool RankPlace::is_alive() const {
  const ProcessStatus status = status_of(std::to_string(process));
  return status.start == start && status.state != 'Z' && status.state != 'X';
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace sherd::detail
