#include "llm/train/free_space.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include <sys/resource.h>

#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t moment_bytes(const config::PrecisionSection& precision) {
  return precision.moments_dtype == config::MomentsDtype::BFloat16 ? 2 : 4;
}

// KiB on the line that begins with `field`, in bytes.
std::int64_t kib_line(const char* path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field, 0) == 0) {
      return std::stoll(line.substr(field.size())) * 1024;
    }
  }
  return 0;
}

// A file with one number; `otherwise` where there is none ("max", no such file).
std::int64_t number_in(const std::filesystem::path& path, std::int64_t otherwise) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? number : otherwise;
}

// The group's line in /proc/self/cgroup of version 2 is "0::/path".
std::filesystem::path control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::/", 0) == 0) {
      return "/sys/fs/cgroup/" + line.substr(4);
    }
  }
  return "/sys/fs/cgroup";
}

std::int64_t left_in_control_group() {
  const std::filesystem::path group = control_group();
  const std::int64_t limit = number_in(group / "memory.max", kUnlimited);
  if (limit == kUnlimited) {
    return kUnlimited;
  }
  std::int64_t reclaimable = 0;  // file pages count for the group, but make room
  std::ifstream file(group / "memory.stat");
  std::string name;
  for (std::int64_t value = 0; file >> name >> value;) {
    reclaimable += name == "inactive_file" || name == "active_file" ? value : 0;
  }
  return std::max<std::int64_t>(0, limit - number_in(group / "memory.current", 0) + reclaimable);
}

std::int64_t left_in_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kUnlimited;
  }
  return std::max<std::int64_t>(
      0, static_cast<std::int64_t>(limit.rlim_cur) - kib_line("/proc/self/status", "VmSize:"));
}

}  // namespace

std::int64_t checkpoint_bytes(std::int64_t parameters, const config::PrecisionSection& precision) {
  return parameters * (4 + 2 * moment_bytes(precision));
}

void require_free_space(const std::string& folder, std::int64_t bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || space.capacity == 0 || space.available == static_cast<std::uintmax_t>(-1)) {
    return;  // a file system that does not say
  }
  const auto available = static_cast<std::int64_t>(
      std::min<std::uintmax_t>(space.available, static_cast<std::uintmax_t>(kUnlimited)));
  if (available < bytes) {
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       "a checkpoint of this model takes " + track::short_bytes(bytes) +
                           ", and the output folder '" + folder + "' has " +
                           track::short_bytes(available) +
                           " free. Make room, or set train.output to a folder on another disk.");
  }
}

std::int64_t least_rank_bytes(std::int64_t parameters, int shard_size,
                              const config::RunConfig& config) {
  const auto dtype = config.precision.param_dtype;
  const bool narrow = dtype == config::ParamDtype::BFloat16 || dtype == config::ParamDtype::Float16;
  const std::int64_t each = 4 + (narrow ? 2 : 0) + 2 * moment_bytes(config.precision) + 4;
  return (parameters + shard_size - 1) / shard_size * each;
}

std::int64_t available_memory_bytes(int local_ranks) {
  const std::int64_t system =
      kib_line("/proc/meminfo", "MemAvailable:") + kib_line("/proc/meminfo", "SwapFree:");
  const std::int64_t each = left_in_address_space();
  const std::int64_t least = std::min({system == 0 ? kUnlimited : system, left_in_control_group(),
                                       each == kUnlimited ? each : each * local_ranks});
  return least == kUnlimited ? 0 : least;
}

void require_memory(std::int64_t rank_bytes, int local_ranks, std::int64_t available_bytes) {
  if (available_bytes == 0 || rank_bytes * local_ranks <= available_bytes) {
    return;
  }
  throw sherd::Error(sherd::ExitCode::OutOfMemory,
                     "the model does not fit: each rank holds at least " +
                         track::short_bytes(rank_bytes) + " between steps, the " +
                         std::to_string(local_ranks) + " of this host together " +
                         track::short_bytes(rank_bytes * local_ranks) + ", and " +
                         track::short_bytes(available_bytes) +
                         " are available. Use more hosts, parallel.strategy = \"full_shard\", or "
                         "precision.moments_dtype = \"bfloat16\".");
}

}  // namespace llm::train
