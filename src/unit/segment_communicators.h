#pragma once
// The communicators that a model's segments use, each with the same numbering.

#include "sherd/communicator.h"

namespace sherd::detail {

struct SegmentCommunicators {
  Communicator* shards = nullptr;  ///< over the ranks that a segment is cut over
  /// Over the ranks that hold the same piece; null where this rank's is the only copy. It carries
  /// gradients alone: it reduces into a rank's part of the all-reduce, and gathers the parts.
  Communicator* replicas = nullptr;
  /// Over fewer ranks, with the pieces that are kept after forward; null unless wanted.
  Communicator* post_forward = nullptr;
  /// Over the shard group, with fp32 masters; null unless evaluation is in full precision.
  Communicator* full_precision = nullptr;
};

}  // namespace sherd::detail
