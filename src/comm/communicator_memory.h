#pragma once
// The memory of a communicator.

#include <memory>
#include <vector>

#include "comm/reduce_buffers.h"

namespace sherd::detail {

struct CommunicatorMemory {
  std::vector<Buffer> shards;     ///< where they are this rank's own
  std::vector<void*> travelling;  ///< by segment: this rank's piece
  std::unique_ptr<ReduceBufferPool> reduce;
};

}  // namespace sherd::detail
