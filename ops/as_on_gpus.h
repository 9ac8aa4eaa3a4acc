#pragma once

#include "ops/with_backend.h"

namespace sherd::ops {

/// While one lives, operators called on its thread with tensors on meta allocate and name what the
/// back end for GPUs does, where that is not what a processor's does: weights that lie side by side
/// have one product, SwiGLU reads and writes columns, and attention in 16 bits is fused: what flash
/// attention allocates, with ALiBi's columns where there are slopes. They compute nothing.
class AsOnGpus {
 public:
  AsOnGpus();

 private:
  WithBackend with_;
};

}  // namespace sherd::ops
