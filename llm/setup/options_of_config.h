#pragma once
// From the configuration to the options of what it configures: the one place where its words become
// the library's.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/model/causal_lm.h"
#include "ops/attention_kernel.h"
#include "sherd/optim.h"
#include "sherd/options.h"
#include "sherd/world.h"

namespace llm::setup {

[[nodiscard]] sherd::Strategy strategy_of(config::Strategy strategy);
/// By the names that the configuration has for them.
[[nodiscard]] std::map<std::string, sherd::Strategy> strategies_by_name();
[[nodiscard]] sherd::Master master_of(config::MasterFormat format);
/// The same.
[[nodiscard]] std::map<std::string, sherd::Master> masters_by_name();

/// Throws sherd::Error(Usage) for a `parallel.shard_size` that does not divide the ranks.
[[nodiscard]] sherd::Mesh mesh_of(const config::RunConfig& config, const sherd::World& world);

/// Over how many ranks the state is cut: masters, moments and sums of gradients.
[[nodiscard]] int state_shards(const config::RunConfig& config, const sherd::World& world);

[[nodiscard]] c10::ScalarType dtype_of(config::ParamDtype dtype);
[[nodiscard]] c10::ScalarType dtype_of(config::MomentsDtype dtype);

[[nodiscard]] sherd::ShardOptions shard_options(const config::RunConfig& config);
/// What ranks exchange over: such that share memory cannot offload parameters.
[[nodiscard]] sherd::Transport transport_of(const sherd::Offload& offload);
[[nodiscard]] sherd::ReduceScatter reduce_scatter_of(config::ReduceScatter way);
[[nodiscard]] sherd::ops::AttentionKernel attention_of(config::AttentionKernel kernel);
/// By the names that the configuration has for them.
[[nodiscard]] std::map<std::string, sherd::ops::AttentionKernel> attention_kernels_by_name();
[[nodiscard]] sherd::AdamWOptions adamw_options(const config::OptimSection& optim);
/// Norms and biases, which is what has one dimension, in a group without weight decay; no group
/// where they are decayed like the rest. `shapes` names all parameters.
[[nodiscard]] std::vector<sherd::ParamGroup> adamw_groups(const config::OptimSection& optim,
                                                          const model::CausalLmImpl& shapes);
[[nodiscard]] sherd::AdamWMode adamw_mode(const config::PrecisionSection& precision);
/// Whether a GradScaler is used.
[[nodiscard]] bool scales_loss(const config::PrecisionSection& precision);

}  // namespace llm::setup
