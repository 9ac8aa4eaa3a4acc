#include "sherd/mesh.h"

#include <string>
#include <utility>

#include "sherd/error.h"

namespace sherd {

Mesh Mesh::shard(World world) {
  const int size = world.size();
  return {std::move(world), 1, size};
}

Mesh Mesh::hybrid(World world, int shard_size) {
  if (shard_size < 1 || world.size() % shard_size != 0) {
    throw Error(ExitCode::Usage, "[Mesh::hybrid] shard_size " + std::to_string(shard_size) +
                                     " does not divide the world of " +
                                     std::to_string(world.size()) +
                                     " ranks: choose a divisor, as the ranks of one host.");
  }
  return {std::move(world), 2, shard_size};
}

Mesh Mesh::of_strategy(World world, Strategy strategy, std::optional<int> shard_size) {
  if (strategy != Strategy::HybridShard && strategy != Strategy::HybridShardGradOp) {
    return shard(std::move(world));
  }
  const int of_host = world.local_size();
  return hybrid(std::move(world), shard_size.value_or(of_host));
}

}  // namespace sherd
