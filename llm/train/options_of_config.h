#pragma once
// From the configuration to the options of what it configures: the one place where its words become
// the library's.

#include <map>
#include <string>

#include "llm/config/run_config.h"
#include "llm/data/batch.h"
#include "sherd/mesh.h"
#include "sherd/optim.h"
#include "sherd/options.h"

namespace llm::train {

[[nodiscard]] sherd::Strategy strategy_of(config::Strategy strategy);
/// By the names that the configuration has for them.
[[nodiscard]] std::map<std::string, sherd::Strategy> strategies_by_name();

/// The ranks as `strategy` wants them: one row, or for the hybrid ones rows of `shard_size`, where
/// 0 is the ranks of a host. Throws sherd::Error(Usage) for a size that does not divide the ranks.
[[nodiscard]] sherd::Mesh mesh_of(sherd::Strategy strategy, std::int64_t shard_size,
                                  const sherd::World& world);
[[nodiscard]] sherd::Mesh mesh_of(const config::RunConfig& config, const sherd::World& world);

/// Over how many ranks the state is cut: masters, moments and sums of gradients.
[[nodiscard]] int state_shards(const config::RunConfig& config, const sherd::World& world);

[[nodiscard]] c10::ScalarType dtype_of(config::ParamDtype dtype);
[[nodiscard]] c10::ScalarType dtype_of(config::MomentsDtype dtype);

/// Throws sherd::Error(Usage) for a number that no world has so many ranks as.
[[nodiscard]] sherd::ShardOptions shard_options(const config::RunConfig& config);
[[nodiscard]] sherd::AdamWOptions adamw_options(const config::OptimSection& optim);
[[nodiscard]] sherd::AdamWMode adamw_mode(const config::MemorySection& memory);

/// How a step's samples are dealt. Throws sherd::Error(Usage) if they do not divide.
[[nodiscard]] data::BatchShape batch_shape(const config::TrainSection& train, int world_size);

}  // namespace llm::train
