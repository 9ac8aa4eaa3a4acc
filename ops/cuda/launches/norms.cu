// The norms: how many threads hold a row, and how many packs of it each.

#include "ops/cuda/kernels/norm_gradients.cuh"
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
          of.epsilon,
          of.is_wide,
          of.offset};
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
          of.width,
          of.is_wide,
          of.offset};
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// Calls `f(threads, packs)` with the fewest that hold the row: 256 threads of 1, 2 or 4 packs, then
// more threads.
template <class T, class F>
void with_row_in_registers(int width, const F& f) {
  const int packs = (width + Pack<T>::kCount - 1) / Pack<T>::kCount;
  if (packs <= 256) {
    f(Constant<256>(), Constant<1>());
  } else if (packs <= 512) {
    f(Constant<256>(), Constant<2>());
  } else if (packs <= 1024) {
    f(Constant<256>(), Constant<4>());
  } else if (packs <= 2048) {
    f(Constant<512>(), Constant<4>());
  } else {
    f(Constant<1024>(), Constant<4>());
  }
}

// Calls `f(threads, warps)`: a block has 8 warps, or the 16 of a row.
template <class F>
void with_row_warps(int warps, const F& f) {
  switch (warps) {
    case 1:
      return f(Constant<256>(), Constant<1>());
    case 2:
      return f(Constant<256>(), Constant<2>());
    case 4:
      return f(Constant<256>(), Constant<4>());
    case 8:
      return f(Constant<256>(), Constant<8>());
    default:
      return f(Constant<512>(), Constant<16>());
  }
}

// Whether there is anything to round before the weight is applied.
template <class T>
inline constexpr bool kRounds = sizeof(T) < sizeof(float);

template <class T>
void launch_wide_backward(Dtype dtype, gpu::Stream stream, const NormBackwardRows<T>& of,
                          bool is_layer_norm) {
  gpu::launch<kThreads>("norm_input_gradient", stream, of.rows,
                        is_layer_norm ? &norm_input_gradient<T, kThreads, true>
                        : of.is_wide  ? &norm_input_gradient<T, kThreads, false, kRounds<T>>
                                      : &norm_input_gradient<T, kThreads, false>,
                        of);
  if (of.weight_parts != nullptr) {
    gpu::launch<kThreads>("norm_weight_gradient", stream,
                          sum_blocks(dtype, norm_parts(dtype, of.rows, of.width), of.width),
                          is_layer_norm ? &norm_weight_gradient<T, kThreads, true>
                          : of.is_wide  ? &norm_weight_gradient<T, kThreads, false, kRounds<T>>
                                        : &norm_weight_gradient<T, kThreads, false>,
                          of);
  }
}

}  // namespace

void launch_norm(Dtype dtype, StreamHandle stream, const NormRows<void>& of, bool is_layer_norm) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_row_in_registers<T>(of.width, [&](auto threads, auto packs) {
      constexpr int kBlock = decltype(threads)::value, kPacks = decltype(packs)::value;
      const auto kernel = is_layer_norm ? &norm<T, kBlock, kPacks, true>
                          : of.is_wide  ? &norm<T, kBlock, kPacks, false, kRounds<T>>
                                        : &norm<T, kBlock, kPacks, false>;
      gpu::launch<kBlock>("norm", stream_of(stream), of.rows, kernel, typed<T>(of));
    });
  });
}

void launch_norm_backward(Dtype dtype, StreamHandle stream, const NormBackwardRows<void>& of,
                          bool is_layer_norm) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const int row_warps = norm_row_warps(dtype, of.width);
    if (row_warps == 0) {
      launch_wide_backward(dtype, stream_of(stream), typed<T>(of), is_layer_norm);
      return;
    }
    with_row_warps(row_warps, [&](auto threads, auto warps) {
      constexpr int kBlock = decltype(threads)::value, kWarps = decltype(warps)::value;
      const auto kernel = is_layer_norm ? &norm_backward<T, kBlock, kWarps, true>
                          : of.is_wide  ? &norm_backward<T, kBlock, kWarps, false, kRounds<T>>
                                        : &norm_backward<T, kBlock, kWarps, false>;
      gpu::launch<kBlock>("norm_backward", stream_of(stream), norm_parts(dtype, of.rows, of.width),
                          kernel, typed<T>(of));
    });
  });
}

}  // namespace sherd::ops::cuda
