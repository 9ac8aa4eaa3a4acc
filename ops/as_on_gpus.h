#pragma once

#include "ops/with_backend.h"

namespace sherd::ops {

/// While one lives, operators called on its thread with tensors on meta allocate and name what the
/// back end for GPUs does, where that is not what a processor's does: weights that lie side by side
/// have one product, and SwiGLU reads and writes columns. They compute nothing.
class AsOnGpus {
 public:
  AsOnGpus();

 private:
  WithBackend with_;
};

}  // namespace sherd::ops
