#include "ops/cuda/kernels/cross_entropy.cuh"
#include "ops/cuda/launches/dtypes.h"

namespace sherd::ops::cuda {
namespace {

template <class T>
LogitRows<T> typed(const LogitRows<void>& of) {
  return {static_cast<T*>(of.logits),
          of.targets,
          of.losses,
          of.log_sums,
          of.rows,
          of.vocabulary,
          of.scale_stride};
}

}  // namespace

void launch_cross_entropy(Dtype dtype, StreamHandle stream, const LogitRows<void>& of) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    gpu::launch<kThreads>("cross_entropy", stream_of(stream), of.rows, &cross_entropy<T, kThreads>,
                          typed<T>(of));
  });
}

void launch_cross_entropy_backward(Dtype dtype, StreamHandle stream, const LogitRows<void>& of,
                                   const float* scale) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    gpu::launch<kThreads>("cross_entropy_backward", stream_of(stream), of.rows,
                          &cross_entropy_backward<T, kThreads>, typed<T>(of), scale);
  });
}

}  // namespace sherd::ops::cuda
