#include "ops/cuda/alibi.h"

#include <algorithm>
#include <limits>

#include <ATen/ops/empty.h>

#include "ops/cuda/dispatch.h"
#include "ops/shared/blockwise_attention.h"

namespace sherd::ops::cuda {
namespace {

static_assert(kLongestWithAlibi == kLongestAlibiDocument);

// Calls `launch(stream, heads)` to fill what it returns.
template <class Launch>
at::Tensor wider(const at::Tensor& heads, const Launch& launch) {
  at::Tensor out =
      at::empty({heads.size(0), heads.size(1), heads.size(2) + kAlibiColumns}, heads.options());
  const WiderHeads<void> of{.input = data(heads),
                            .out = mutable_data(out),
                            .token_stride = heads.stride(0),
                            .head_stride = heads.stride(1),
                            .tokens = heads.size(0),
                            .heads = static_cast<int>(heads.size(1)),
                            .width = static_cast<int>(heads.size(2))};
  on_device_of(heads, [&](StreamHandle stream) { launch(stream, of); });
  return out;
}

}  // namespace

bool serves_alibi_columns(const AttentionInputs& inputs) {
  constexpr int64_t kMostPacks = std::numeric_limits<uint32_t>::max();
  const at::Tensor& query = inputs.query;
  const int64_t packs =
      query.size(0) * query.size(1) * (query.size(2) + kAlibiColumns) / kAlibiColumns;
  return inputs.slopes.scalar_type() == at::kFloat && inputs.slopes.is_contiguous() &&
         inputs.documents.longest() <= kLongestWithAlibi && packs < kMostPacks;
}

AttentionInputs with_alibi_columns(const AttentionInputs& inputs,
                                   const at::Tensor& document_offsets) {
  const Dtype dtype = dtype_of(inputs.query);
  const at::Tensor query = wider(inputs.query, [&](StreamHandle stream, const auto& of) {
    launch_alibi_queries(dtype, stream, of, inputs.slopes.const_data_ptr<float>(),
                         scale_of(inputs));
  });
  const at::Tensor key = wider(inputs.key, [&](StreamHandle stream, const auto& of) {
    launch_alibi_keys(dtype, stream, of, document_offsets.const_data_ptr<int32_t>(),
                      static_cast<int>(inputs.documents.count()));
  });
  AttentionScores scores = inputs.scores;
  scores.scale = scale_of(inputs);  // of the heads without columns
  return {query,
          key,
          with_zero_columns(inputs.value),
          inputs.documents,
          /*slopes=*/{},
          inputs.kernel,
          scores};
}

at::Tensor with_zero_columns(const at::Tensor& heads) {
  return wider(heads, [&](StreamHandle stream, const auto& of) {
    launch_wider_heads(dtype_of(heads), stream, of);
  });
}

at::Tensor without_columns(const at::Tensor& heads) {
  return heads.narrow(2, 0, heads.size(2) - kAlibiColumns);
}

}  // namespace sherd::ops::cuda
