#include "llm/plan/free_space.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>

#include <fmt/core.h>
#include <sys/stat.h>

#include "llm/track/step_record.h"
#include "ops/q8_0.h"
#include "sherd/error.h"

namespace llm::plan {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t moment_bytes(const config::PrecisionSection& precision) {
  return precision.moments == config::MomentsDtype::BFloat16 ? 2 : 4;
}

bool has_narrow_weights(const config::PrecisionSection& precision) {
  return precision.param_dtype == config::ParamDtype::BFloat16;
}

// Bytes per parameter of the shard in param_dtype and of masters in addition to it.
std::int64_t weight_bytes(const config::PrecisionSection& precision) {
  if (!has_narrow_weights(precision)) {
    return precision.param_dtype == config::ParamDtype::Float16 ? 6 : 4;
  }
  switch (precision.master) {
    case config::MasterFormat::Float32:
      return 6;
    case config::MasterFormat::Split:
      return 4;
    case config::MasterFormat::BFloat16:
      return 2;
  }
  return 6;
}

std::int64_t gradient_bytes(const config::PrecisionSection& precision) {
  const bool narrow = precision.reduce_dtype == config::ReduceDtype::BFloat16;
  return narrow && has_narrow_weights(precision) ? 2 : 4;
}

}  // namespace

std::int64_t checkpoint_bytes(std::int64_t parameters, const config::PrecisionSection& precision) {
  const bool narrow =
      has_narrow_weights(precision) && precision.master == config::MasterFormat::BFloat16;
  return parameters * ((narrow ? 2 : 4) + 2 * moment_bytes(precision));
}

std::int64_t most_checkpoints(const config::CheckpointSection& policy,
                              const inputs::RunLength& length) {
  const auto saves = [&]() -> std::int64_t {
    switch (policy.every.unit) {
      case config::Every::Unit::Never:
        return 1;  // at the end or at a stop
      case config::Every::Unit::Steps:
        return length.total_steps / policy.every.count + 1;
      case config::Every::Unit::Epoch:
        return length.total_steps / length.steps_per_epoch + 1;
      case config::Every::Unit::Time:
        return length.total_steps;
    }
    return length.total_steps;
  };
  return policy.keeps_best() ? std::min<std::int64_t>(length.total_steps, policy.keep + 2)
                             : std::min<std::int64_t>(saves(), policy.keep + 1);
}

std::optional<std::int64_t> free_bytes(const std::string& folder) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || space.capacity == 0 || space.available == static_cast<std::uintmax_t>(-1)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(
      std::min<std::uintmax_t>(space.available, static_cast<std::uintmax_t>(kUnlimited)));
}

void require_free_space(const std::string& folder, std::int64_t bytes, const std::string& what) {
  const std::optional<std::int64_t> available = free_bytes(folder);
  if (available && *available < bytes) {
    throw sherd::Error(
        sherd::ExitCode::CannotWrite,
        fmt::format("{} {}, and the output folder '{}' has {} free. Make room, lower "
                    "checkpoint.keep, or set train.output to a folder on another disk.",
                    what, track::short_bytes(bytes), folder, track::short_bytes(*available)));
  }
}

std::int64_t least_rank_bytes(const PlannedParameters& parameters, int shard_size,
                              const config::RunConfig& config) {
  const config::PrecisionSection& precision = config.precision;
  const bool is_narrow =
      has_narrow_weights(precision) || precision.param_dtype == config::ParamDtype::Float16;
  const config::OffloadSection& offload = config.memory.offload;
  const std::int64_t travelling = is_narrow ? 2 : 4;
  const std::int64_t masters = weight_bytes(precision) - travelling;
  const std::int64_t frozen =
      offload.parameter_folder.empty() && !offload.parameters_on_host ? travelling : 0;
  const std::int64_t each =
      frozen +
      (offload.optimizer_folder.empty() && !offload.optimizer_on_host
           ? masters + 2 * moment_bytes(precision)
           : 0) +
      (offload.gradient_folder.empty() && !offload.gradients_on_host ? gradient_bytes(precision)
                                                                     : 0);
  const auto shard_of = [&](std::int64_t count) { return (count + shard_size - 1) / shard_size; };
  const std::int64_t blocks =
      frozen > 0 ? shard_of(sherd::ops::q8_0::row_bytes(parameters.in_8_bits)) : 0;
  return shard_of(parameters.trained) * each +
         shard_of(parameters.all - parameters.trained - parameters.in_8_bits) * frozen + blocks;
}

std::optional<std::int64_t> offload_disk_bytes(const config::OffloadSection& offload) {
  namespace fs = std::filesystem;
  std::set<dev_t> disks;
  std::optional<std::int64_t> free_bytes;
  for (const std::string& folder :
       {offload.optimizer_folder, offload.gradient_folder, offload.parameter_folder}) {
    if (folder.empty()) {
      continue;
    }
    std::error_code error;
    fs::path there = fs::absolute(folder, error);
    while (!fs::exists(there, error) && there.has_relative_path()) {
      there = there.parent_path();
    }
    struct stat status = {};
    const fs::space_info space = fs::space(there, error);
    if (error || space.capacity == 0 || ::stat(there.c_str(), &status) != 0) {
      return std::nullopt;
    }
    disks.insert(status.st_dev);
    free_bytes = static_cast<std::int64_t>(
        std::min<std::uintmax_t>(space.available, static_cast<std::uintmax_t>(kUnlimited)));
  }
  return disks.size() == 1 ? free_bytes : std::nullopt;
}

void require_memory(std::int64_t rank_bytes, int local_ranks, std::int64_t available_bytes) {
  if (available_bytes == 0 || rank_bytes * local_ranks <= available_bytes) {
    return;
  }
  throw sherd::Error(
      sherd::ExitCode::OutOfMemory,
      fmt::format("the model does not fit: each rank holds at least {} between steps, and the {} "
                  "of this host {} in total, but {} are available. Use more hosts, "
                  "parallel.strategy = \"full_shard\", precision.master = \"split\", "
                  "precision.moments = \"bfloat16\", or memory.offload.",
                  track::short_bytes(rank_bytes), local_ranks,
                  track::short_bytes(rank_bytes * local_ranks),
                  track::short_bytes(available_bytes)));
}

}  // namespace llm::plan
