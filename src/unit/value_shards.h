#pragma once
// What states and checkpoints move: the ranks' parts of the parameters.

#include <vector>

#include "sherd/sharded_module.h"
#include "unit/model.h"

namespace sherd::detail {

/// As ShardedModule::parameter_shards(), without gradients: what backward left is neither scaled
/// nor shown, so that the gradient norm taken while it was added up stays known.
[[nodiscard]] std::vector<ParameterShard> value_shards(const Model& model);

}  // namespace sherd::detail
