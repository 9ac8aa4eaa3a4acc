#pragma once
// The communicators of one sharded model.

#include <memory>
#include <vector>

#include "sherd/communicator.h"
#include "sherd/options.h"
#include "sherd/world.h"

namespace sherd::detail {

/// Mesh and options decide which exist; the others are null. Each numbers the segments of the model
/// alike.
struct ModelCommunicators {
  /// Collective.
  ModelCommunicators(Mesh& mesh, const ShardOptions& options, bool evaluates_in_full_precision);

  /// Over the ranks that a segment is cut over.
  std::unique_ptr<Communicator> shards;
  /// Over the ranks that hold the same shard; null where this rank's is the only copy. It carries
  /// gradients alone: it reduces into a rank's part of the all-reduce, and gathers the parts.
  std::unique_ptr<Communicator> replicas;
  /// Over fewer ranks, with the shards that are kept after forward; null unless wanted.
  std::unique_ptr<Communicator> post_forward;
  /// Over the shard group, with fp32 masters; null unless evaluation is in full precision.
  std::unique_ptr<Communicator> full_precision;

  /// Returns those that there are.
  [[nodiscard]] std::vector<Communicator*> all() const;
  /// Returns the counts of all: gathers of each, and reductions by what they sum over.
  [[nodiscard]] Communicator::Counts counts() const;
};

}  // namespace sherd::detail
