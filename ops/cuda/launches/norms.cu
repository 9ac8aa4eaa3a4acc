// The norms, by the packs that a thread holds of a row.

#include "ops/cuda/kernels/norms.cuh"
#include "ops/cuda/launches/dtypes.h"

namespace sherd::ops::cuda {
namespace {

template <class T>
NormRows<T> typed(const NormRows<void>& of) {
  return {static_cast<const T*>(of.input),
          static_cast<const T*>(of.residual),
          static_cast<const T*>(of.weight),
          static_cast<const T*>(of.bias),
          static_cast<T*>(of.sum),
          static_cast<T*>(of.normalised),
          of.statistics,
          of.rows,
          of.width,
          of.epsilon};
}
template <class T>
NormBackwardRows<T> typed(const NormBackwardRows<void>& of) {
  return {static_cast<const T*>(of.grad),
          static_cast<const T*>(of.grad_sum),
          static_cast<const T*>(of.sum),
          static_cast<const T*>(of.weight),
          of.statistics,
          static_cast<T*>(of.grad_input),
          of.weight_parts,
          of.bias_parts,
          of.rows,
          of.width};
}

// Kernels are templates of the packs a thread: 1, 2 or 4, the fewest that hold the row.
template <class T, class F>
void with_packs(int width, const F& f) {
  const int packs = (width + kThreads * Pack<T>::kCount - 1) / (kThreads * Pack<T>::kCount);
  if (packs <= 1) {
    f(std::integral_constant<int, 1>());
  } else if (packs == 2) {
    f(std::integral_constant<int, 2>());
  } else {
    f(std::integral_constant<int, 4>());
  }
}

}  // namespace

void launch_norm(Dtype dtype, StreamHandle stream, const NormRows<void>& of, bool is_layer_norm) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_packs<T>(of.width, [&](auto packs) {
      constexpr int kPacks = decltype(packs)::value;
      const auto kernel =
          is_layer_norm ? &norm<T, kThreads, kPacks, true> : &norm<T, kThreads, kPacks, false>;
      gpu::launch<kThreads>(stream_of(stream), of.rows, kernel, typed<T>(of));
    });
  });
}

void launch_norm_backward(Dtype dtype, StreamHandle stream, const NormBackwardRows<void>& of,
                          bool is_layer_norm) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_packs<T>(of.width, [&](auto packs) {
      constexpr int kPacks = decltype(packs)::value;
      const auto kernel = is_layer_norm ? &norm_backward<T, kThreads, kPacks, true>
                                        : &norm_backward<T, kThreads, kPacks, false>;
      gpu::launch<kThreads>(stream_of(stream), norm_parts(of.rows), kernel, typed<T>(of));
    });
  });
}

}  // namespace sherd::ops::cuda
