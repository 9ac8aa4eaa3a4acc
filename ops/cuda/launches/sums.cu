// Sums over rows: by columns, and by the ids of embedded tokens.

#include "ops/cuda/kernels/column_sums.cuh"
#include "ops/cuda/kernels/embedding.cuh"
#include "ops/cuda/launches/dtypes.h"

namespace sherd::ops::cuda {

void launch_column_sums(Dtype dtype, StreamHandle stream, const void* matrix, float* parts,
                        std::int64_t rows, std::int64_t columns, std::int64_t part_count) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    gpu::launch<kThreads>(stream_of(stream), sum_blocks(dtype, part_count, columns),
                          &column_sums<T, kThreads>, static_cast<const T*>(matrix), parts, rows,
                          columns);
  });
}

void launch_embedding_gradient(Dtype dtype, StreamHandle stream, const EmbeddingRows<void>& of) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const EmbeddingRows<T> typed{
        of.ids,   of.order, static_cast<const T*>(of.gradient), static_cast<T*>(of.out),
        of.count, of.width};
    const std::int64_t blocks = of.count * ((of.width + kThreads - 1) / kThreads);
    gpu::launch<kThreads>(stream_of(stream), blocks, &add_embedding_rows<T, kThreads>, typed);
  });
}

}  // namespace sherd::ops::cuda
