#include "llm/train/free_space.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "llm/track/step_record.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t moment_bytes(const config::MemorySection& memory) {
  return memory.moments_dtype == config::MomentsDtype::BFloat16 ? 2 : 4;
}

}  // namespace

std::int64_t checkpoint_bytes(std::int64_t parameters, const config::MemorySection& memory) {
  return parameters * (4 + 2 * moment_bytes(memory));
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
  const bool narrow = config.precision.param_dtype == config::ParamDtype::BFloat16;
  const std::int64_t each = 4 + (narrow ? 2 : 0) + 2 * moment_bytes(config.memory) + 4;
  return (parameters + shard_size - 1) / shard_size * each;
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
                         "memory.moments_dtype = \"bfloat16\".");
}

}  // namespace llm::train
