#include "llm/doctor/machine.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "files/control_group.h"
#include "llm/hub/settings.h"
#include "sherd/error.h"

namespace llm::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLook{500};

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// What follows `field` and a colon on its line in a text like /proc/cpuinfo's.
std::string field_of(const std::string& text, const std::string& field) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with(field) && colon != std::string::npos) {
      return line.substr(std::min(line.size(), line.find_first_not_of(" \t", colon + 1)));
    }
  }
  return "";
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(static_cast<std::size_t>(core), &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

int physical_cores_of(const std::vector<int>& cores) {
  std::set<std::string> seen;
  for (const int core : cores) {
    const std::string siblings = text_of("/sys/devices/system/cpu/cpu" + std::to_string(core) +
                                         "/topology/thread_siblings_list");
    seen.insert(siblings.empty() ? std::to_string(core) : siblings);
  }
  return static_cast<int>(seen.size());
}

// The least of what a process's groups say; none where none has a limit.
template <class Value>
std::optional<Value> least_of_groups(const std::string& controller,
                                     std::optional<Value> (*limit_of)(const fs::path& group)) {
  std::optional<Value> least;
  for (const fs::path& group : sherd::files::control_groups(controller)) {
    const std::optional<Value> limit = limit_of(group);
    least = limit && least ? std::min(*limit, *least) : limit ? limit : least;
  }
  return least;
}

std::optional<double> quota_cores_of(const fs::path& group) {
  auto quota = number_in(group / "cpu.cfs_quota_us");
  auto period = number_in(group / "cpu.cfs_period_us");
  if (std::ifstream file(group / "cpu.max"); file) {
    std::string allowed;
    std::uint64_t every = 0;
    file >> allowed >> every;
    quota = std::isdigit(static_cast<unsigned char>(allowed.empty() ? 'm' : allowed[0])) != 0
                ? std::optional<std::uint64_t>(std::stoull(allowed))
                : std::nullopt;
    period = every;
  }
  constexpr std::uint64_t kMicrosecondsOfYear = std::uint64_t{1} << 45;  // -1, read as unsigned
  return quota && period && *period > 0 && *quota < kMicrosecondsOfYear
             ? std::optional(static_cast<double>(*quota) / static_cast<double>(*period))
             : std::nullopt;
}

Processor processor() {
  const std::vector<int> cores = usable_cores();
  const std::string cpuinfo = text_of("/proc/cpuinfo");
  Processor found;
  found.model = field_of(cpuinfo, "model name");
  found.cores = static_cast<int>(cores.size());
  found.physical_cores = physical_cores_of(cores);
  found.quota_cores = least_of_groups<double>("cpu", &quota_cores_of);
  found.instruction_sets = instruction_sets_of(cpuinfo);
  const std::string before = text_of("/proc/stat");
  std::this_thread::sleep_for(kLook);
  found.busy_cores = busy_cores_between(before, text_of("/proc/stat"), cores);
  return found;
}

std::uint64_t kibibytes(const std::string& meminfo, const std::string& field) {
  return std::strtoull(field_of(meminfo, field).c_str(), nullptr, 10) * 1024;
}

std::optional<std::uint64_t> memory_limit_of(const fs::path& group) {
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;  // version 1 says a number near 2^63
  const auto limit = number_in(group / "memory.max");
  const auto found = limit ? limit : number_in(group / "memory.limit_in_bytes");
  return found.value_or(kNoLimit) < kNoLimit ? found : std::nullopt;
}

Memory memory() {
  const std::string meminfo = text_of("/proc/meminfo");
  Memory found;
  found.total_bytes = kibibytes(meminfo, "MemTotal");
  found.swap_bytes = kibibytes(meminfo, "SwapTotal");
  found.group_limit_bytes = least_of_groups<std::uint64_t>("memory", &memory_limit_of);
  struct statvfs shared = {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    found.shared_bytes = std::uint64_t{shared.f_blocks} * shared.f_frsize;
  }
  return found;
}

std::vector<ProcessLimit> limits() {
  struct Named {
    const char* name;
    __rlimit_resource_t what;
  };
  constexpr std::array<Named, 4> kNamed{{{"open files", RLIMIT_NOFILE},
                                         {"processes", RLIMIT_NPROC},
                                         {"address space bytes", RLIMIT_AS},
                                         {"locked memory bytes", RLIMIT_MEMLOCK}}};
  std::vector<ProcessLimit> found;
  for (const Named& named : kNamed) {
    rlimit limit{};
    if (::getrlimit(named.what, &limit) == 0) {
      found.push_back({named.name, limit.rlim_cur == RLIM_INFINITY
                                       ? std::nullopt
                                       : std::optional<std::uint64_t>(limit.rlim_cur)});
    }
  }
  return found;
}

// What the driver's own program says; else the names that the driver leaves in /proc.
std::vector<Gpu> gpus() {
  std::vector<Gpu> found;
  std::FILE* const pipe = ::popen(
      "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits "
      "2>/dev/null",
      "re");
  std::array<char, 4096> bytes{};
  const std::size_t size = pipe == nullptr ? 0 : std::fread(bytes.data(), 1, bytes.size(), pipe);
  if (pipe != nullptr && ::pclose(pipe) == 0) {
    found = gpus_in({bytes.data(), size});
  }
  std::error_code error;
  if (found.empty()) {
    for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
      found.push_back({field_of(text_of(gpu.path() / "information"), "Model"), {}, {}});
    }
  }
  return found;
}

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

HubPlace hub() {
  HubPlace found;
  for (const char* const name :
       {"HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH",
        "CURL_CA_BUNDLE", "https_proxy", "http_proxy", "ALL_PROXY", "NO_PROXY"}) {
    if (variable(name)) {
      found.variables.emplace_back(name);
    }
  }
  try {
    found.cache = hub::hub_settings(variable).cache;
  } catch (const sherd::Error& error) {
    found.fault = error.what();
    return found;
  }
  std::error_code error;
  fs::path there = fs::absolute(found.cache, error);  // the cache, or what it will be made in
  while (!fs::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  if (const auto disk = fs::space(there, error); !error) {
    found.free_bytes = disk.available;
  }
  if (!fs::is_directory(there, error)) {
    found.fault = there.string() + " is not a folder";
  } else if (::access(there.c_str(), W_OK | X_OK) != 0) {
    found.fault = there.string() + " may not be written to";
  }
  return found;
}

// Ticks in which a core of /proc/stat worked, and all of them.
struct Ticks {
  double busy = 0;
  double all = 0;
};

std::map<int, Ticks> ticks_of(const std::string& stat) {
  std::map<int, Ticks> cores;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu") || line.size() < 4 ||
        std::isdigit(static_cast<unsigned char>(line[3])) == 0) {
      continue;
    }
    std::istringstream words(line.substr(3));
    int core = 0;
    words >> core;
    Ticks& ticks = cores[core];
    // user nice system idle iowait irq softirq steal (proc_stat(5))
    double value = 0;
    for (int column = 0; column < 8 && words >> value; ++column) {
      ticks.all += value;
      ticks.busy += column == 3 || column == 4 ? 0 : value;
    }
  }
  return cores;
}

}  // namespace

double busy_cores_between(const std::string& before, const std::string& after,
                          const std::vector<int>& cores) {
  std::map<int, Ticks> first = ticks_of(before);
  std::map<int, Ticks> second = ticks_of(after);
  double busy = 0;
  for (const int core : cores) {
    const double all = second[core].all - first[core].all;
    busy += all > 0 ? std::clamp((second[core].busy - first[core].busy) / all, 0.0, 1.0) : 0;
  }
  return busy;
}

std::vector<std::string> instruction_sets_of(const std::string& cpuinfo) {
  constexpr std::array<const char*, 9> kThatMatter{"avx2",        "fma",      "f16c",
                                                   "avx512f",     "avx512bw", "avx512vl",
                                                   "avx512_bf16", "amx_tile", "amx_bf16"};
  std::istringstream words(field_of(cpuinfo, "flags"));
  const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
  std::vector<std::string> found;
  std::copy_if(kThatMatter.begin(), kThatMatter.end(), std::back_inserter(found),
               [&](const char* name) { return flags.contains(name); });
  return found;
}

std::vector<Gpu> gpus_in(const std::string& answer) {
  std::vector<Gpu> found;
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(", ");
    const std::size_t second = line.find(", ", first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
    const std::uint64_t mebibytes =
        std::strtoull(line.c_str() + first + 2, nullptr, 10);  // "[N/A]" of some
    found.push_back({line.substr(0, first),
                     mebibytes > 0 ? std::optional(mebibytes * kMebi) : std::nullopt,
                     line.substr(second + 2)});
  }
  return found;
}

Machine look_around() {
  Machine machine;
  machine.processor = processor();
  machine.memory = memory();
  machine.limits = limits();
  machine.interfaces = interfaces();
  machine.gpus.found = gpus();
  machine.hub = hub();
  if (const auto threads = variable("OMP_NUM_THREADS")) {
    const int asked = std::atoi(threads->c_str());
    machine.threads_asked = asked > 0 ? std::optional(asked) : std::nullopt;
  }
  return machine;
}

}  // namespace llm::doctor
