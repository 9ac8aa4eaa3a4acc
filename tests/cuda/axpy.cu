#include <cuda_bf16.h>

#include "tests/cuda/axpy.h"

namespace sherd::test {

namespace {

__global__ void axpy(float a, const __nv_bfloat16* x, float* y, int64_t numel) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < numel) {
    y[i] += a * __bfloat162float(x[i]);
  }
}

}  // namespace

void axpy_on_gpu(float a, const void* x_bfloat16, float* y, int64_t numel) {
  constexpr int64_t kThreads = 256;
  const auto blocks = static_cast<unsigned>((numel + kThreads - 1) / kThreads);
  axpy<<<blocks, kThreads>>>(a, static_cast<const __nv_bfloat16*>(x_bfloat16), y, numel);
}

}  // namespace sherd::test
