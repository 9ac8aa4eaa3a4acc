#pragma once
// The arrangement of ranks that a model is sharded over.

#include <optional>
#include <utility>

#include "sherd/options.h"
#include "sherd/world.h"

namespace sherd {

/// A mesh of one or two dimensions, replicate × shard. A parameter is cut over the ranks of a row
/// (the shard group, consecutive ranks), and each row holds a copy of the model. Rank r is in row
/// r ÷ shard_size() and has piece r mod shard_size(). A value, used as its World is. PyTorch:
/// `DeviceMesh`.
class Mesh {
 public:
  /// One row of all ranks.
  [[nodiscard]] static Mesh shard(World world);
  /// Rows of `shard_size` consecutive ranks, for Strategy::HybridShard and HybridShardGradOp: put
  /// the ranks of one host in a row, so that only sums of gradients travel between hosts. Throws
  /// Error(Usage) unless shard_size divides the number of ranks.
  [[nodiscard]] static Mesh hybrid(World world, int shard_size);
  /// The one of the two that a strategy wants; rows of a hybrid one are the ranks of a host where
  /// no `shard_size` is given. Throws Error(Usage) as hybrid().
  [[nodiscard]] static Mesh of_strategy(World world, Strategy strategy,
                                        std::optional<int> shard_size = std::nullopt);

  /// All ranks of the mesh.
  [[nodiscard]] World& world() { return world_; }
  /// All ranks of the mesh.
  [[nodiscard]] const World& world() const { return world_; }
  /// 1 or 2: with which of the two functions it was made.
  [[nodiscard]] int dimensions() const { return dimensions_; }
  /// Ranks that a parameter is cut over.
  [[nodiscard]] int shard_size() const { return shard_size_; }
  /// Which piece of each parameter this rank holds.
  [[nodiscard]] int shard_rank() const { return world_.rank() % shard_size_; }
  /// Copies of the model.
  [[nodiscard]] int replicate_size() const { return world_.size() / shard_size_; }
  /// Which copy this rank belongs to.
  [[nodiscard]] int replicate_rank() const { return world_.rank() / shard_size_; }

 private:
  Mesh(World world, int dimensions, int shard_size)
      : world_(std::move(world)), dimensions_(dimensions), shard_size_(shard_size) {}
  World world_;
  int dimensions_;
  int shard_size_;
};

}  // namespace sherd
