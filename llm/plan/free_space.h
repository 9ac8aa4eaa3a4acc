#pragma once
// Whether a run fits on this machine: checked before weights are loaded, not after the last step.

#include <cstdint>
#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/inputs/run_data.h"
#include "sherd/world.h"

namespace llm::plan {

/// The bytes of a checkpoint of `parameters` elements: fp32 values and two moments of them.
[[nodiscard]] std::int64_t checkpoint_bytes(std::int64_t parameters,
                                            const config::PrecisionSection& precision);

/// Returns how many checkpoints lie on the disk at once, at most, in a run of this length: those
/// that stay, the best one, and the one that is being written.
[[nodiscard]] std::int64_t most_checkpoints(const config::CheckpointSection& policy,
                                            const inputs::RunLength& length);

/// Returns the bytes that a user may still write on the file system of `folder`; none if the system
/// does not report it. Not collective.
[[nodiscard]] std::optional<std::int64_t> free_bytes(const std::string& folder);

/// Throws sherd::Error(CannotWrite), with both numbers, if the folder's file system has less than
/// `bytes` free; `what` begins the message. Nothing is thrown if the system does not report it. Not
/// collective.
void require_free_space(const std::string& folder, std::int64_t bytes, const std::string& what);

/// Elements of a model's parameters.
struct PlannedParameters {
  std::int64_t all = 0;
  std::int64_t trained = 0;    ///< of these; the others are frozen
  std::int64_t in_8_bits = 0;  ///< of the frozen ones, those of Q8_0 blocks
};
/// What every rank holds between steps, at least: its part of the fp32 masters, the copy in
/// `param_dtype` that travels, two moments, and the sums of gradients; of frozen parameters that
/// copy alone, or their blocks. Activations and gathered units come on top.
[[nodiscard]] std::int64_t least_rank_bytes(const PlannedParameters& parameters, int shard_size,
                                            const config::RunConfig& config);

/// Throws sherd::Error(OutOfMemory), with the numbers, if the ranks of this host need more memory
/// than there is.
void require_memory(std::int64_t rank_bytes, int local_ranks, std::int64_t available_bytes);

/// Free on the file system of all folders that it names, whether they are there yet or not; none
/// where it names none, they are on several, or that is not known. Not collective.
[[nodiscard]] std::optional<std::int64_t> offload_disk_bytes(const config::OffloadSection& offload);

}  // namespace llm::plan
