// Heads of 16 bits alone: what attention takes that has no bias of its own.

#include "ops/cuda/kernels/alibi.cuh"
#include "ops/cuda/launches/dtypes.h"

namespace sherd::ops::cuda {
namespace {

// Calls `f(heads, blocks)` for the heads' type.
template <class F>
void with_heads(Dtype dtype, const WiderHeads<void>& of, const F& f) {
  const auto call = [&](auto type) {
    using T = decltype(type);
    const WiderHeads<T> heads{static_cast<const T*>(of.input),
                              static_cast<T*>(of.out),
                              of.token_stride,
                              of.head_stride,
                              of.tokens,
                              of.heads,
                              of.width};
    f(heads, blocks_for(of.tokens * of.heads * (of.width / pack_count(dtype) + 1)));
  };
  if (dtype == Dtype::BFloat16) {
    call(gpu::BFloat16());
  } else {
    call(gpu::Half());
  }
}

}  // namespace

void launch_alibi_queries(Dtype dtype, StreamHandle stream, const WiderHeads<void>& of,
                          const float* slopes, double scale) {
  const auto factor = static_cast<float>(kFineFactor / scale);
  with_heads(dtype, of, [&]<class T>(const WiderHeads<T>& heads, std::int64_t blocks) {
    gpu::launch<kThreads>("alibi_queries", stream_of(stream), blocks, &alibi_queries<T, kThreads>,
                          heads, slopes, factor);
  });
}

void launch_alibi_keys(Dtype dtype, StreamHandle stream, const WiderHeads<void>& of,
                       const std::int32_t* document_offsets, int documents) {
  with_heads(dtype, of, [&]<class T>(const WiderHeads<T>& heads, std::int64_t blocks) {
    gpu::launch<kThreads>("alibi_keys", stream_of(stream), blocks, &alibi_keys<T, kThreads>, heads,
                          document_offsets, documents);
  });
}

void launch_wider_heads(Dtype dtype, StreamHandle stream, const WiderHeads<void>& of) {
  with_heads(dtype, of, [&]<class T>(const WiderHeads<T>& heads, std::int64_t blocks) {
    gpu::launch<kThreads>("wider_heads", stream_of(stream), blocks, &wider_heads<T, kThreads>,
                          heads);
  });
}

}  // namespace sherd::ops::cuda
