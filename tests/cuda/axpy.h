#pragma once
// A kernel of our own, to see that nvcc's output and LibTorch live in one program.

#include <cstdint>

namespace sherd::test {

/// y[i] += a × x[i] for `numel` values that lie on the GPU, x in bfloat16, on the default stream.
void axpy_on_gpu(float a, const void* x_bfloat16, float* y, int64_t numel);

}  // namespace sherd::test
