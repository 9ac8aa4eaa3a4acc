#include "llm/train/options_of_config.h"

#include <limits>
#include <string>

#include "sherd/error.h"

namespace llm::train {

namespace {

// A number of the configuration that the library keeps in an int.
int narrowed(const char* key, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    throw sherd::Error(sherd::ExitCode::Usage, std::string(key) + " = " + std::to_string(value) +
                                                   " is more than any number of ranks or units.");
  }
  return static_cast<int>(value);
}

}  // namespace

sherd::Strategy strategy_of(config::Strategy strategy) {
  switch (strategy) {
    case config::Strategy::FullShard:
      return sherd::Strategy::FullShard;
    case config::Strategy::ShardGradOp:
      return sherd::Strategy::ShardGradOp;
    case config::Strategy::NoShard:
      return sherd::Strategy::NoShard;
    case config::Strategy::HybridShard:
      return sherd::Strategy::HybridShard;
    case config::Strategy::HybridShardGradOp:
      return sherd::Strategy::HybridShardGradOp;
  }
  return sherd::Strategy::FullShard;
}

std::map<std::string, sherd::Strategy> strategies_by_name() {
  using config::Strategy;
  std::map<std::string, sherd::Strategy> named;
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard,
                                  Strategy::HybridShard, Strategy::HybridShardGradOp}) {
    config::RunConfig config;
    config.parallel.strategy = strategy;
    for (const auto& [key, value] : config::key_values(config)) {
      if (key == "parallel.strategy") {
        named[value.substr(1, value.size() - 2)] = strategy_of(strategy);  // without its quotes
      }
    }
  }
  return named;
}

sherd::Mesh mesh_of(sherd::Strategy strategy, std::int64_t shard_size, const sherd::World& world) {
  if (strategy != sherd::Strategy::HybridShard && strategy != sherd::Strategy::HybridShardGradOp) {
    return sherd::Mesh::shard(world);
  }
  const int size = narrowed("parallel.shard_size", shard_size);
  return sherd::Mesh::hybrid(world, size == 0 ? world.local_size() : size);
}

sherd::Mesh mesh_of(const config::RunConfig& config, const sherd::World& world) {
  return mesh_of(strategy_of(config.parallel.strategy), config.parallel.shard_size, world);
}

int state_shards(const config::RunConfig& config, const sherd::World& world) {
  return config.parallel.strategy == config::Strategy::NoShard
             ? 1
             : mesh_of(config, world).shard_size();
}

c10::ScalarType dtype_of(config::ParamDtype dtype) {
  return dtype == config::ParamDtype::Float32 ? c10::kFloat : c10::kBFloat16;
}

c10::ScalarType dtype_of(config::MomentsDtype dtype) {
  return dtype == config::MomentsDtype::Float32 ? c10::kFloat : c10::kBFloat16;
}

sherd::ShardOptions shard_options(const config::RunConfig& config) {
  sherd::ShardOptions options;
  options.strategy = strategy_of(config.parallel.strategy);
  options.reshard_after_forward_size =
      narrowed("parallel.reshard_after_forward_size", config.parallel.reshard_after_forward_size);
  options.units = sherd::unit_policy::every_unit(
      {.checkpoint_activations = config.memory.activation_checkpointing});
  options.prefetch_depth = narrowed("parallel.prefetch_depth", config.parallel.prefetch_depth);
  options.precision.param_dtype = dtype_of(config.precision.param_dtype);
  return options;
}

sherd::AdamWOptions adamw_options(const config::OptimSection& optim) {
  return {optim.lr, {optim.betas[0], optim.betas[1]}, optim.eps, optim.weight_decay};
}

sherd::AdamWMode adamw_mode(const config::MemorySection& memory) {
  return {.moments_dtype = dtype_of(memory.moments_dtype)};
}

data::BatchShape batch_shape(const config::TrainSection& train, int world_size) {
  const data::BatchShape shape{train.global_batch, train.micro_batch, world_size};
  shape.validate();
  return shape;
}

}  // namespace llm::train
