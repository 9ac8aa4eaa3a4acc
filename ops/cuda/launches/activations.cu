#include "ops/cuda/kernels/activations.cuh"
#include "ops/cuda/launches/dtypes.h"

namespace sherd::ops::cuda {
namespace {

template <class T>
RotaryHeads<T> typed(const RotaryHeads<void>& of) {
  const auto strides = [](const RotaryHeads<void>::Strides& by) {
    return typename RotaryHeads<T>::Strides{by.batch, by.head, by.token};
  };
  return {static_cast<const T*>(of.input),
          of.cosine,
          of.sine,
          static_cast<T*>(of.out),
          strides(of.input_strides),
          strides(of.table_strides),
          of.batch,
          of.heads,
          of.tokens,
          of.half,
          of.direction};
}

}  // namespace

void launch_swiglu(Dtype dtype, StreamHandle stream, const SwiGluRows<void>& of) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const SwiGluRows<T> typed{static_cast<const T*>(of.gate),
                              static_cast<const T*>(of.up),
                              static_cast<T*>(of.out),
                              of.numel,
                              of.width,
                              of.stride,
                              of.is_gelu};
    gpu::launch<kThreads>("swiglu", stream_of(stream), blocks_for(of.numel / pack_count(dtype)),
                          of.is_gelu ? &swiglu<T, kThreads, true> : &swiglu<T, kThreads>, typed);
  });
}

void launch_swiglu_backward(Dtype dtype, StreamHandle stream, const SwiGluBackwardRows<void>& of) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const SwiGluBackwardRows<T> typed{static_cast<const T*>(of.grad),
                                      static_cast<const T*>(of.gate),
                                      static_cast<const T*>(of.up),
                                      static_cast<T*>(of.grad_gate),
                                      static_cast<T*>(of.grad_up),
                                      of.numel,
                                      of.width,
                                      of.stride,
                                      of.grad_stride,
                                      of.is_gelu};
    gpu::launch<kThreads>(
        "swiglu_backward", stream_of(stream), blocks_for(of.numel / pack_count(dtype)),
        of.is_gelu ? &swiglu_backward<T, kThreads, true> : &swiglu_backward<T, kThreads>, typed);
  });
}

void launch_bias_gelu(Dtype dtype, StreamHandle stream, const void* input, const void* bias,
                      void* out, std::int64_t numel, std::int64_t width) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    gpu::launch<kThreads>("bias_gelu", stream_of(stream), blocks_for(numel / pack_count(dtype)),
                          &bias_gelu<T, kThreads>, static_cast<const T*>(input),
                          static_cast<const T*>(bias), static_cast<T*>(out), numel, width);
  });
}

void launch_bias_gelu_backward(Dtype dtype, StreamHandle stream,
                               const BiasGeluBackwardRows<void>& of) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const BiasGeluBackwardRows<T> typed{static_cast<const T*>(of.grad),
                                        static_cast<const T*>(of.input),
                                        static_cast<const T*>(of.bias),
                                        static_cast<T*>(of.grad_input),
                                        of.bias_parts,
                                        of.rows,
                                        of.columns};
    gpu::launch<kThreads>("bias_gelu_backward", stream_of(stream),
                          sum_blocks(dtype, sum_parts(of.rows), of.columns),
                          &bias_gelu_backward<T, kThreads>, typed);
  });
}

void launch_rotary(Dtype dtype, StreamHandle stream, const RotaryHeads<void>& of) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t packs = of.batch * of.heads * of.tokens * of.half / pack_count(dtype);
    gpu::launch<kThreads>("rotary", stream_of(stream), blocks_for(packs), &rotary<T, kThreads>,
                          typed<T>(of));
  });
}

}  // namespace sherd::ops::cuda
