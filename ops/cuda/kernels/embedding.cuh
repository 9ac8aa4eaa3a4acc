#pragma once
// The gradient of an embedding: tokens of one id are summed in their order, and added at once.

#include "gpu/block.cuh"
#include "ops/cuda/kernels/arguments.h"

namespace sherd::ops::cuda {

using namespace gpu;  // NOLINT(google-build-using-namespace)

/// out[id] += the gradients of each id that there is, summed in fp32 and rounded once. A block for
/// `kThreads` columns of each token, of which the id's first one works. Bytes: (n + 2 × ids that
/// differ) × width × sizeof(T).
template <class T, int kThreads>
GPU_KERNEL(kThreads)
add_embedding_rows(EmbeddingRows<T> of) {
  const std::int64_t tiles = (of.width + kThreads - 1) / kThreads;
  const std::int64_t first = gpu::block_index() / tiles;
  const std::int64_t column = gpu::block_index() % tiles * kThreads + gpu::thread_index();
  const std::int64_t id = of.ids[first];
  if (column >= of.width || (first > 0 && of.ids[first - 1] == id)) {
    return;
  }
  float sum = 0;
  for (std::int64_t at = first; at < of.count && of.ids[at] == id; ++at) {
    sum += gpu::to_float(of.gradient[of.order[at] * of.width + column]);
  }
  T* const to = of.out + id * of.width + column;
  *to = gpu::rounded<T>(sum + gpu::to_float(*to));
}

}  // namespace sherd::ops::cuda
