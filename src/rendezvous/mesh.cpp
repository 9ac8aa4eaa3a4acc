// Meshes, and the table of strategies over them.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "sherd/error.h"
#include "sherd/options.h"
#include "sherd/world.h"

namespace sherd {

namespace {

struct NamedPlacements {
  Strategy strategy;
  const char* name;
  Placements placements;
};

constexpr Placement S = Placement::Shard;
constexpr Placement R = Placement::Replicate;
constexpr Placement P = Placement::Partial;

// Parameters after forward, parameters after backward, gradients, optimizer; dimensions.
constexpr std::array kStrategies = {
    NamedPlacements{Strategy::FullShard, "FullShard", {S, S, S, S, 1}},
    NamedPlacements{Strategy::ShardGradOp, "ShardGradOp", {R, S, S, S, 1}},
    NamedPlacements{Strategy::ShardOptimizer, "ShardOptimizer", {R, R, P, S, 1}},
    NamedPlacements{Strategy::NoShard, "NoShard", {R, R, R, R, 1}},
    NamedPlacements{Strategy::HybridShard, "HybridShard", {S, S, S, S, 2}},
    NamedPlacements{Strategy::HybridShardGradOp, "HybridShardGradOp", {R, S, S, S, 2}},
};

const NamedPlacements& row_of(Strategy strategy) {
  return *std::ranges::find(kStrategies, strategy, &NamedPlacements::strategy);
}

}  // namespace

const char* name_of(Strategy strategy) {
  return row_of(strategy).name;
}

Placements placements_of(Strategy strategy) {
  return row_of(strategy).placements;
}

namespace {

// The first rank of each host is the first of a row, where ranks were dealt to hosts in blocks.
void warn_where_rows_cross_hosts(const World& world, int shard_size) {
  if (shard_size > 1 && shard_size <= world.local_size() && shard_size < world.size() &&
      world.local_rank() == 0 && world.rank() % shard_size != 0) {
    TORCH_WARN("[Mesh] HYBRID_SHARD gathers parameters across hosts, which is slow: rank ",
               world.rank(), " is the first of its host, and not the first of a row of ",
               shard_size,
               " consecutive ranks. Deal ranks to hosts in blocks: srun --distribution=block, "
               "mpirun --map-by slot.");
  }
}

}  // namespace

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
  const Placements placements = placements_of(strategy);
  if (placements.optimizer == Placement::Replicate) {
    return hybrid(std::move(world), 1);
  }
  if (placements.mesh_dimensions == 1) {
    return shard(std::move(world));
  }
  const int size = shard_size.value_or(world.local_size());
  warn_where_rows_cross_hosts(world, size);
  return hybrid(std::move(world), size);
}

}  // namespace sherd
