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

 private:
  explicit Mesh(World world) : world_(std::move(world)) {}
  World world_;
};

}  // namespace sherd
