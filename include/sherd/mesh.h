#pragma once
// The arrangement of ranks that a model is sharded over.

#include "sherd/world.h"

namespace sherd {

/// A 1-D mesh: every parameter is cut over all ranks of the world. PyTorch: `DeviceMesh` of one
/// dimension.
class Mesh {
 public:
  [[nodiscard]] static Mesh shard(World world) { return Mesh(std::move(world)); }

  [[nodiscard]] World& world() { return world_; }
  [[nodiscard]] const World& world() const { return world_; }
  /// Ranks that a parameter is cut over.
  [[nodiscard]] int shard_size() const { return world_.size(); }
  /// Which of the shard_size() pieces this rank holds.
  [[nodiscard]] int shard_rank() const { return world_.rank(); }
  /// Groups of ranks that hold the same pieces each.
  [[nodiscard]] int replicate_size() const { return 1; }
  [[nodiscard]] int replicate_rank() const { return 0; }

 private:
  explicit Mesh(World world) : world_(std::move(world)) {}
  World world_;
};

}  // namespace sherd
