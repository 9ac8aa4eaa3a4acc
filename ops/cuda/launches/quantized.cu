// Weights in 8 bits, as matrices.

#include "ops/cuda/kernels/quantized.cuh"
#include "ops/cuda/launches/dtypes.h"

namespace sherd::ops::cuda {

void launch_dequantize(Dtype dtype, StreamHandle stream, const QuantizedRows<void>& of) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const QuantizedRows<T> typed{of.blocks, static_cast<T*>(of.out), of.rows, of.width, of.stride};
    gpu::launch<kThreads>("dequantize", stream_of(stream),
                          blocks_for(of.rows * of.width / pack_count(dtype)),
                          &dequantize<T, kThreads>, typed);
  });
}

}  // namespace sherd::ops::cuda
