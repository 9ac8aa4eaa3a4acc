#pragma once
// Every strategy, on a mesh that shows what it does.

#include <array>

#include "sherd/options.h"
#include "sherd/world.h"

namespace sherd::test {

inline constexpr std::array kStrategies = {Strategy::FullShard, Strategy::ShardGradOp,
                                           Strategy::NoShard, Strategy::HybridShard,
                                           Strategy::HybridShardGradOp};

inline Mesh alone() {
  return Mesh::shard(World::alone());
}

inline bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::HybridShard || strategy == Strategy::HybridShardGradOp;
}

/// Rows of two ranks where the world is even and larger than two; else rows of one, so that there
/// are replicas in any world of several ranks.
inline int shard_size_for(int world_size, Strategy strategy) {
  if (strategy == Strategy::NoShard) {
    return 1;
  }
  if (!is_hybrid(strategy)) {
    return world_size;
  }
  return world_size > 2 && world_size % 2 == 0 ? 2 : 1;
}

inline Mesh mesh_for(const World& world, Strategy strategy) {
  return is_hybrid(strategy) ? Mesh::hybrid(world, shard_size_for(world.size(), strategy))
                             : Mesh::shard(world);
}

}  // namespace sherd::test
