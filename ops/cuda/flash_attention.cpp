#include "ops/cuda/flash_attention.h"

#include <limits>
#include <optional>
#include <string>

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include "ops/cuda/alibi.h"
#include "ops/cuda/dispatch.h"
#include "ops/fused_attention.h"
#include "ops/shared/blockwise_attention.h"

namespace sherd::ops::cuda {
namespace {

constexpr bool kIsCausal = true;
constexpr double kDropout = 0;

// How many tokens before and behind a query it sees.
struct SeenTokens {
  explicit SeenTokens(const AttentionScores& scores) {
    if (scores.window != 0) {
      left = scores.window - 1;
      right = 0;
    }
  }
  std::optional<int64_t> left, right;
};

}  // namespace

std::string why_not_flash_attention(const AttentionInputs& inputs) {
  const at::Tensor& query = inputs.query;
  const bool has_alibi = inputs.slopes.defined();
  if (!is_16_bits(query)) {
    return "it computes bfloat16 and float16";
  }
  if (!serves_flash_heads(query.size(2), has_alibi)) {
    return "it serves head sizes that are multiples of 8, up to " +
           std::to_string(kWidestFlashHead - (has_alibi ? kAlibiColumns : 0));
  }
  if (!have_packed_heads(inputs)) {
    return "heads do not begin at multiples of 16 bytes";
  }
  if (query.size(0) >= std::numeric_limits<int32_t>::max()) {
    return "the batch is too large";
  }
  if (inputs.scores.soft_cap != 0) {
    return "LibTorch's has no soft cap of scores";
  }
  if (has_alibi && !serves_alibi_columns(inputs)) {
    return "with ALiBi it computes documents of up to " + std::to_string(kLongestAlibiDocument) +
           " tokens";
  }
  return has_fused_attention(compute_capability(query.device()) / 10)
             ? ""
             : "it needs compute capability 8.0";
}

AttentionOutput flash_attention(const AttentionInputs& inputs) {
  const at::Tensor offsets = inputs.documents.bounds_on(inputs.query.device());
  const int64_t longest = inputs.documents.longest();
  const bool has_alibi = inputs.slopes.defined();
  const AttentionInputs read = has_alibi ? with_alibi_columns(inputs, offsets) : inputs;
  const SeenTokens seen(inputs.scores);
  const auto result = at::_flash_attention_forward(
      read.query, read.key, read.value, offsets, offsets, longest, longest, kDropout, kIsCausal,
      /*return_debug_mask=*/false, scale_of(inputs), seen.left, seen.right);
  const at::Tensor& wide = std::get<0>(result);
  const at::Tensor mixed = has_alibi ? without_columns(wide) : wide;
  return {mixed.reshape({mixed.size(0), -1}), /*log_sums=*/std::get<1>(result),
          AttentionKernel::Flash};
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
  const SeenTokens seen(inputs.scores);
  const auto [of_query, of_key, of_value] = at::_flash_attention_backward(
      as_read(grad_mixed_TD), read.query, read.key, read.value, as_read(output.mixed_TD),
      output.log_sums, offsets, offsets, longest, longest, kDropout, kIsCausal, unread, unread,
      scale_of(inputs), seen.left, seen.right);
  return has_alibi ? AttentionGradients{without_columns(of_query), without_columns(of_key),
                                        without_columns(of_value)}
                   : AttentionGradients{of_query, of_key, of_value};
}

}  // namespace sherd::ops::cuda
