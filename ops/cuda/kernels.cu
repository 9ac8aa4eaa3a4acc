// The kernels as GPUs get them, in each dtype: compiled in CI, where what registers cannot hold is
// an error.

#include "ops/cuda/kernels/activations.cuh"
#include "ops/cuda/kernels/cross_entropy.cuh"
#include "ops/cuda/kernels/norms.cuh"

namespace sherd::ops::cuda {

constexpr int kThreads = 256;

#define SHERD_NORMS(T, packs)                                                             \
  template __global__ void norm<T, kThreads, packs, false>(NormRows<T>);                  \
  template __global__ void norm<T, kThreads, packs, true>(NormRows<T>);                   \
  template __global__ void norm_backward<T, kThreads, packs, false>(NormBackwardRows<T>); \
  template __global__ void norm_backward<T, kThreads, packs, true>(NormBackwardRows<T>);
#define SHERD_KERNELS(T)                                                                      \
  SHERD_NORMS(T, 1)                                                                           \
  SHERD_NORMS(T, 2)                                                                           \
  SHERD_NORMS(T, 4)                                                                           \
  template __global__ void swiglu<T, kThreads>(const T*, const T*, T*, std::int64_t);         \
  template __global__ void swiglu_backward<T, kThreads>(const T*, const T*, const T*, T*, T*, \
                                                        std::int64_t);                        \
  template __global__ void bias_gelu<T, kThreads>(const T*, const T*, T*, std::int64_t, int); \
  template __global__ void bias_gelu_backward<T, kThreads>(const T*, const T*, const T*, T*,  \
                                                           std::int64_t, int);                \
  template __global__ void rotary<T, kThreads>(const T*, const float*, const float*, T*,      \
                                               std::int64_t, int, int, float);                \
  template __global__ void cross_entropy<T, kThreads>(LogitRows<T>);                          \
  template __global__ void cross_entropy_backward<T, kThreads>(                               \
      T*, const std::int64_t*, const float*, const float*, std::int64_t);

SHERD_KERNELS(float)
SHERD_KERNELS(gpu::BFloat16)
SHERD_KERNELS(gpu::Half)
template __global__ void sum_rows<float, kThreads>(const float*, float*, std::int64_t,
                                                   std::int64_t);

}  // namespace sherd::ops::cuda
