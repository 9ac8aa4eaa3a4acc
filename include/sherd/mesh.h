#pragma once
// The arrangement of ranks that shards a model.

#include <optional>
#include <utility>

#include "sherd/options.h"
#include "sherd/world.h"

namespace sherd {

/// A mesh of one or two dimensions, replicate × shard. A row (the shard group, consecutive ranks)
/// shards each parameter, and each row holds a copy of the model. Rank r is in row r ÷ shard_size()
/// and holds shard r mod shard_size(). A value; the thread rules of its World apply. PyTorch:
/// `DeviceMesh`.
class Mesh {
 public:
  /// Returns a mesh with one row of all ranks.
  [[nodiscard]] static Mesh shard(World world);
  /// Returns a mesh with rows of `shard_size` consecutive ranks, for Strategy::HybridShard and
  /// HybridShardGradOp. Put the ranks of one host in a row, so that only gradient sums cross hosts.
  /// Throws Error(Usage) unless shard_size divides the number of ranks.
  [[nodiscard]] static Mesh hybrid(World world, int shard_size);
  /// Returns shard() or hybrid(), as the strategy requires. Without `shard_size`, a row of a hybrid
  /// mesh is the ranks of one host. Throws Error(Usage) as hybrid() does.
  [[nodiscard]] static Mesh of_strategy(World world, Strategy strategy,
                                        std::optional<int> shard_size = std::nullopt);

  /// Returns the world of all ranks of the mesh.
  [[nodiscard]] World& world() { return world_; }
  /// Returns the world of all ranks of the mesh.
  [[nodiscard]] const World& world() const { return world_; }
  /// Returns 1 for a mesh from shard(), 2 for one from hybrid().
  [[nodiscard]] int dimensions() const { return dimensions_; }
  /// Returns the number of ranks that shard a parameter.
  [[nodiscard]] int shard_size() const { return shard_size_; }
  /// Returns which shard of each parameter this rank holds.
  [[nodiscard]] int shard_rank() const { return world_.rank() % shard_size_; }
  /// Returns the number of copies of the model.
  [[nodiscard]] int replicate_size() const { return world_.size() / shard_size_; }
  /// Returns which copy this rank belongs to.
  [[nodiscard]] int replicate_rank() const { return world_.rank() / shard_size_; }

 private:
  Mesh(World world, int dimensions, int shard_size)
      : world_(std::move(world)), dimensions_(dimensions), shard_size_(shard_size) {}
  World world_;
  int dimensions_;
  int shard_size_;
};

}  // namespace sherd
