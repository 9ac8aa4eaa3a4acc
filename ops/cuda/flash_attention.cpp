#include "ops/cuda/flash_attention.h"

#include <limits>

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include "ops/cuda/alibi.h"
#include "ops/cuda/dispatch.h"
#include "ops/shared/blockwise_attention.h"

namespace sherd::ops::cuda {
namespace {

constexpr int64_t kWidestHead = 256;
constexpr bool kIsCausal = true;
constexpr double kDropout = 0;

// Each head begins with a pack.
bool has_packed_heads(const at::Tensor& heads) {
  const int64_t count = pack_count(dtype_of(heads));
  return is_aligned(heads) && heads.stride(2) == 1 && heads.stride(1) % count == 0 &&
         heads.stride(0) % count == 0;
}

}  // namespace

bool serves_flash_attention(const AttentionInputs& inputs) {
  const at::Tensor& query = inputs.query;
  const bool is_16_bits = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  const bool has_alibi = inputs.slopes.defined();
  return is_16_bits && inputs.documents.longest() > 1 &&
         query.size(0) < std::numeric_limits<int32_t>::max() &&
         query.size(2) + (has_alibi ? kAlibiColumns : 0) <= kWidestHead &&
         fits_packs(query, query.size(2)) && has_packed_heads(query) &&
         has_packed_heads(inputs.key) && has_packed_heads(inputs.value) &&
         (!has_alibi || serves_alibi_columns(inputs)) && has_flash_attention(query.device());
}

AttentionOutput flash_attention(const AttentionInputs& inputs) {
  const at::Tensor offsets = inputs.documents.bounds_on(inputs.query.device());
  const int64_t longest = inputs.documents.longest();
  const bool has_alibi = inputs.slopes.defined();
  const AttentionInputs read = has_alibi ? with_alibi_columns(inputs, offsets) : inputs;
  const auto result = at::_flash_attention_forward(
      read.query, read.key, read.value, offsets, offsets, longest, longest, kDropout, kIsCausal,
      /*return_debug_mask=*/false, scale_of(inputs.query));
  const at::Tensor& wide = std::get<0>(result);
  const at::Tensor mixed = has_alibi ? without_columns(wide) : wide;
  return {mixed.reshape({mixed.size(0), -1}), /*log_sums=*/std::get<1>(result),
          /*keeps_mixed=*/true};
}

AttentionGradients flash_attention_backward(const AttentionInputs& inputs,
                                            const AttentionOutput& output,
                                            const at::Tensor& grad_mixed_TD) {
  const at::Tensor& query = inputs.query;
  const at::Tensor offsets = inputs.documents.bounds_on(query.device());
  const int64_t longest = inputs.documents.longest();
  const bool has_alibi = inputs.slopes.defined();
  const AttentionInputs read = has_alibi ? with_alibi_columns(inputs, offsets) : inputs;
  const auto as_read = [&](const at::Tensor& mixed_TD) {
    const at::Tensor heads = mixed_TD.reshape(query.sizes());
    return !has_alibi                ? heads
           : has_packed_heads(heads) ? with_zero_columns(heads)
                                     : with_zero_columns(heads.clone(at::MemoryFormat::Contiguous));
  };
  // Without dropout nobody reads the state of random numbers.
  const at::Tensor unread = at::empty({2}, query.options().dtype(at::kUInt64));
  const auto [of_query, of_key, of_value] = at::_flash_attention_backward(
      as_read(grad_mixed_TD), read.query, read.key, read.value, as_read(output.mixed_TD),
      output.log_sums, offsets, offsets, longest, longest, kDropout, kIsCausal, unread, unread,
      scale_of(query));
  return has_alibi ? AttentionGradients{without_columns(of_query), without_columns(of_key),
                                        without_columns(of_value)}
                   : AttentionGradients{of_query, of_key, of_value};
}

}  // namespace sherd::ops::cuda
