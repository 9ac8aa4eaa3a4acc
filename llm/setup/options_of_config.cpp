#include "llm/setup/options_of_config.h"

#include <set>
#include <string>
#include <utility>

#include "llm/config/words.h"

namespace llm::setup {

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
    case config::Strategy::ShardOptimizer:
      return sherd::Strategy::ShardOptimizer;
  }
  return sherd::Strategy::FullShard;
}

std::map<std::string, sherd::Strategy> strategies_by_name() {
  std::map<std::string, sherd::Strategy> named;
  for (const auto& [word, strategy] : config::strategy_words()) {
    named[word] = strategy_of(strategy);
  }
  return named;
}

sherd::Mesh mesh_of(const config::RunConfig& config, const sherd::World& world) {
  return sherd::Mesh::of_strategy(world, strategy_of(config.parallel.strategy),
                                  config.parallel.shard_size);
}

int state_shards(const config::RunConfig& config, const sherd::World& world) {
  return mesh_of(config, world).shard_size();
}

c10::ScalarType dtype_of(config::ParamDtype dtype) {
  switch (dtype) {
    case config::ParamDtype::Auto:
    case config::ParamDtype::Float32:
      return c10::kFloat;
    case config::ParamDtype::BFloat16:
      return c10::kBFloat16;
    case config::ParamDtype::Float16:
      return c10::kHalf;
  }
  return c10::kFloat;
}

c10::ScalarType dtype_of(config::MomentsDtype dtype) {
  return dtype == config::MomentsDtype::Float32 ? c10::kFloat : c10::kBFloat16;
}

sherd::Master master_of(config::MasterFormat format) {
  switch (format) {
    case config::MasterFormat::Float32:
      return sherd::Master::Float32;
    case config::MasterFormat::Split:
      return sherd::Master::Split;
    case config::MasterFormat::BFloat16:
      return sherd::Master::BFloat16;
  }
  return sherd::Master::Float32;
}

std::map<std::string, sherd::Master> masters_by_name() {
  std::map<std::string, sherd::Master> named;
  for (const auto& [word, format] : config::master_words()) {
    named[word] = master_of(format);
  }
  return named;
}

sherd::ShardOptions shard_options(const config::RunConfig& config) {
  sherd::ShardOptions options;
  options.strategy = strategy_of(config.parallel.strategy);
  options.reshard_after_forward_size = config.parallel.reshard_after_forward_size.value_or(0);
  options.units = sherd::unit_policy::every_unit(
      {.checkpoint_activations = config.memory.activation_checkpointing});
  options.prefetch_depth = config.parallel.prefetch_depth;
  options.precision.param_dtype = dtype_of(config.precision.param_dtype);
  options.precision.master = master_of(config.precision.master);
  options.precision.reduce_dtype =
      config.precision.reduce_dtype == config::ReduceDtype::BFloat16 ? c10::kBFloat16 : c10::kFloat;
  options.offload = {
      config.memory.offload.optimizer_folder,    config.memory.offload.gradient_folder,
      config.memory.offload.parameter_folder,    config.memory.offload.optimizer_on_host,
      config.memory.offload.activations_on_host, config.memory.offload.parameters_on_host,
      config.memory.offload.gradients_on_host};
  return options;
}

sherd::Transport transport_of(const sherd::Offload& offload) {
  return offload.parameter_folder.empty() ? sherd::Transport::Automatic
                                          : sherd::Transport::ProcessGroups;
}

sherd::ReduceScatter reduce_scatter_of(config::ReduceScatter way) {
  return way == config::ReduceScatter::Native ? sherd::ReduceScatter::Native
                                              : sherd::ReduceScatter::RankOrder;
}

sherd::ops::AttentionKernel attention_of(config::AttentionKernel kernel) {
  switch (kernel) {
    case config::AttentionKernel::Auto:
      return sherd::ops::AttentionKernel::Auto;
    case config::AttentionKernel::Cudnn:
      return sherd::ops::AttentionKernel::Cudnn;
    case config::AttentionKernel::Flash:
      return sherd::ops::AttentionKernel::Flash;
    case config::AttentionKernel::Plain:
      return sherd::ops::AttentionKernel::Plain;
  }
  return sherd::ops::AttentionKernel::Auto;
}

std::map<std::string, sherd::ops::AttentionKernel> attention_kernels_by_name() {
  std::map<std::string, sherd::ops::AttentionKernel> named;
  for (const auto& [word, kernel] : config::attention_words()) {
    named[word] = attention_of(kernel);
  }
  return named;
}

sherd::AdamWOptions adamw_options(const config::OptimSection& optim) {
  return {optim.lr, {optim.betas[0], optim.betas[1]}, optim.eps, optim.weight_decay};
}

std::vector<sherd::ParamGroup> adamw_groups(const config::OptimSection& optim,
                                            const model::CausalLmImpl& shapes) {
  if (optim.weight_decay_on_norms_and_biases || optim.weight_decay == 0) {
    return {};
  }
  std::set<std::string> vectors;
  for (const auto& parameter : shapes.named_parameters()) {
    if (parameter.value().dim() <= 1) {
      vectors.insert(parameter.key());
    }
  }
  sherd::AdamWOptions without_decay = adamw_options(optim);
  without_decay.weight_decay = 0;
  const auto contains = [vectors = std::move(vectors)](const std::string& name) {
    return vectors.contains(name);
  };
  return {{contains, without_decay}};
}

sherd::AdamWMode adamw_mode(const config::PrecisionSection& precision) {
  return {.moments_dtype = dtype_of(precision.moments)};
}

bool scales_loss(const config::PrecisionSection& precision) {
  return precision.param_dtype == config::ParamDtype::Float16 &&
         precision.scaler == config::Scaler::Auto;
}

}  // namespace llm::setup
