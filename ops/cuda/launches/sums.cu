// Sums over rows: by columns, and by the ids of embedded tokens.

#include "ops/cuda/kernels/column_sums.cuh"
#include "ops/cuda/kernels/embedding.cuh"
#include "ops/cuda/launches/dtypes.h"

namespace sherd::ops::cuda {
namespace {

template <class T>
bool begins_a_pack(const T* array) {
  return reinterpret_cast<std::uintptr_t>(array) % sizeof(Pack<T>) == 0;
}

template <class T, class Out, int kCount>
void launch_rows(StreamHandle stream, const EmbeddingRows<T, Out>& of) {
  constexpr std::int64_t kTokens = kThreads / gpu::kWarp, kColumns = gpu::kWarp * kCount;
  const std::int64_t blocks =
      (of.count + kTokens - 1) / kTokens * ((of.width + kColumns - 1) / kColumns);
  gpu::launch<kThreads>("add_embedding_rows", stream_of(stream), blocks,
                        &add_embedding_rows<T, Out, kCount, kThreads>, of);
}

// Packs of the gradient, where rows are whole packs; else single values.
template <class T, class Out>
void launch_typed(StreamHandle stream, const EmbeddingRows<void, void>& of) {
  const EmbeddingRows<T, Out> typed{
      of.ids,   of.order, static_cast<const T*>(of.gradient), static_cast<Out*>(of.out),
      of.count, of.width};
  if (of.width % Pack<T>::kCount == 0 && begins_a_pack(typed.gradient) &&
      begins_a_pack(typed.out)) {
    launch_rows<T, Out, Pack<T>::kCount>(stream, typed);
  } else {
    launch_rows<T, Out, 1>(stream, typed);
  }
}

}  // namespace

void launch_column_sums(Dtype dtype, StreamHandle stream, const void* matrix, float* parts,
                        std::int64_t rows, std::int64_t columns, std::int64_t part_count) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    gpu::launch<kThreads>("column_sums", stream_of(stream), sum_blocks(dtype, part_count, columns),
                          &column_sums<T, kThreads>, static_cast<const T*>(matrix), parts, rows,
                          columns);
  });
}

void launch_sorted_ids(StreamHandle stream, const std::int64_t* ids, std::int64_t count,
                       std::int32_t* sorted, std::int64_t* order) {
  gpu::launch<kThreads>("sorted_ids", stream_of(stream), (count + gpu::kWarp - 1) / gpu::kWarp,
                        &sorted_ids<kThreads>, ids, count, sorted, order);
}

void launch_embedding_gradient(Dtype gradient, Dtype out, StreamHandle stream,
                               const EmbeddingRows<void, void>& of) {
  with_type(gradient, [&](auto type) {
    using T = decltype(type);
    if (out == gradient) {
      launch_typed<T, T>(stream, of);
    } else {
      launch_typed<T, float>(stream, of);
    }
  });
}

}  // namespace sherd::ops::cuda
