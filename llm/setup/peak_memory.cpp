#include "llm/setup/peak_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <sys/resource.h>

#include "files/control_group.h"

namespace llm::setup {

namespace {

// The number of KiB on the line that begins with `field`.
std::int64_t bytes_of(const char* path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field, 0) == 0) {
      return std::stoll(line.substr(field.size())) * 1024;
    }
  }
  return 0;
}

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// A file with one number; `otherwise` where there is none ("max", no such file).
std::int64_t number_in(const std::filesystem::path& path, std::int64_t otherwise) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? number : otherwise;
}

std::int64_t left_in_control_group(const std::filesystem::path& group) {
  const std::int64_t limit = number_in(group / "memory.max", kNoLimit);
  if (limit == kNoLimit) {
    return kNoLimit;
  }
  std::int64_t reclaimable = 0;  // file pages count for the group, but make room
  std::ifstream file(group / "memory.stat");
  std::string name;
  for (std::int64_t value = 0; file >> name >> value;) {
    reclaimable += name == "inactive_file" || name == "active_file" ? value : 0;
  }
  return std::max<std::int64_t>(0, limit - number_in(group / "memory.current", 0) + reclaimable);
}

// A limit may stand at any group that holds this process's own.
std::int64_t left_in_control_groups() {
  std::int64_t least = kNoLimit;
  for (const std::filesystem::path& group : sherd::files::control_groups("memory")) {
    least = std::min(least, left_in_control_group(group));
  }
  return least;
}

std::int64_t left_in_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kNoLimit;
  }
  return std::max<std::int64_t>(
      0, static_cast<std::int64_t>(limit.rlim_cur) - bytes_of("/proc/self/status", "VmSize:"));
}

}  // namespace

std::int64_t peak_resident_bytes() {
  return bytes_of("/proc/self/status", "VmHWM:");
}

// Pss counts a page of a file as 1/n of all processes that map it now. Old kernels do not tell how
// much that is.
ResidentMemory resident_memory(int local_ranks) {
  constexpr const char* kRollup = "/proc/self/smaps_rollup";
  const std::int64_t pss = bytes_of(kRollup, "Pss:");
  const std::int64_t of_files = bytes_of(kRollup, "Pss_File:");
  return {pss - of_files,
          of_files == 0 ? 0 : bytes_of("/proc/self/status", "RssFile:") / local_ranks};
}

namespace {

// In whole segments, as the device gives them.
c10::CachingAllocator::Stat reserved_on(c10::Device device) {
  return at::accelerator::getDeviceStats(device.index())
      .reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

std::int64_t peak_bytes_on(c10::Device device) {
  return device.is_cuda() ? reserved_on(device).peak : peak_resident_bytes();
}

std::int64_t held_bytes_of(const sherd::World& rank) {
  return rank.device().is_cuda() ? reserved_on(rank.device()).current
                                 : resident_memory(rank.local_size()).bytes();
}

std::int64_t available_memory_bytes(int local_ranks) {
  const std::int64_t system =
      bytes_of("/proc/meminfo", "MemAvailable:") + bytes_of("/proc/meminfo", "SwapFree:");
  const std::int64_t each = left_in_address_space();
  const std::int64_t least = std::min({system == 0 ? kNoLimit : system, left_in_control_groups(),
                                       each == kNoLimit ? each : each * local_ranks});
  return least == kNoLimit ? 0 : least;
}

}  // namespace llm::setup
