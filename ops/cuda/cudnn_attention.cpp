#include "ops/cuda/cudnn_attention.h"

#include <limits>
#include <string>

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/empty.h>

#include "ops/cuda/dispatch.h"
#include "ops/fused_attention.h"
#include "ops/shared/blockwise_attention.h"

// Shapes: B documents of L tokens each, T = B × L.

namespace sherd::ops::cuda {
namespace {

constexpr int64_t kMostCudnnDocuments = 65535;
constexpr bool kIsCausalForCudnn = true;
constexpr double kCudnnDropout = 0;

// [T, N, H] -> [B, N, L, H], a view
at::Tensor by_document(const at::Tensor& heads, const Documents& documents) {
  return heads.unflatten(0, {documents.count(), documents.longest()}).transpose(1, 2);
}

// [B, N, L, H] -> [T, N, H]
at::Tensor by_token(const at::Tensor& heads) {
  return heads.transpose(1, 2).flatten(0, 1);
}

}  // namespace

std::string why_not_cudnn_attention(const AttentionInputs& inputs) {
  const at::Tensor& query = inputs.query;
  if (!is_16_bits(query)) {
    return "it computes bfloat16 and float16";
  }
  if (inputs.slopes.defined()) {
    return "it has no ALiBi";
  }
  if (inputs.scores.window != 0) {
    return "LibTorch gives it no window";
  }
  if (inputs.scores.soft_cap != 0) {
    return "LibTorch gives it no soft cap of scores";
  }
  if (!inputs.documents.have_equal_lengths()) {
    return "the documents of a batch differ in length";
  }
  if (!serves_cudnn_heads(query.size(2))) {
    return "it serves head sizes that are multiples of 8, up to " +
           std::to_string(kWidestCudnnHead);
  }
  if (!have_packed_heads(inputs)) {
    return "heads do not begin at multiples of 16 bytes";
  }
  // LibTorch describes strides to cuDNN as int.
  if (inputs.documents.count() > kMostCudnnDocuments ||
      query.numel() > std::numeric_limits<int32_t>::max()) {
    return "the batch is too large";
  }
  if (!has_fused_attention(compute_capability(query.device()) / 10)) {
    return "it needs compute capability 8.0";
  }
  return at::globalContext().deterministicAlgorithms()
             ? "LibTorch does not call it deterministic, and train.deterministic is true"
             : "";
}

AttentionOutput cudnn_attention(const AttentionInputs& inputs) {
  const Documents& documents = inputs.documents;
  const auto result = at::_scaled_dot_product_cudnn_attention(
      by_document(inputs.query, documents), by_document(inputs.key, documents),
      by_document(inputs.value, documents), /*attn_bias=*/std::nullopt,
      /*compute_log_sumexp=*/true, kCudnnDropout, kIsCausalForCudnn, /*return_debug_mask=*/false,
      scale_of(inputs));
  return {by_token(std::get<0>(result)).reshape({inputs.query.size(0), -1}),
          /*log_sums=*/std::get<1>(result), AttentionKernel::Cudnn};
}

AttentionGradients cudnn_attention_backward(const AttentionInputs& inputs,
                                            const AttentionOutput& output,
                                            const at::Tensor& grad_mixed_TD) {
  const at::Tensor& query = inputs.query;
  const Documents& documents = inputs.documents;
  // LibTorch keeps a plan for each layout of queries, keys and values: the gradient's has to be the
  // same every time.
  const auto as_heads = [&](const at::Tensor& mixed_TD) {
    return by_document(mixed_TD.contiguous().view(query.sizes()), documents);
  };
  // Without dropout nobody reads the state of random numbers, which has to be a tensor.
  const at::Tensor unread = at::empty({}, query.options().dtype(at::kLong));
  const at::Tensor none;
  const auto [of_query, of_key, of_value] = at::_scaled_dot_product_cudnn_attention_backward(
      as_heads(grad_mixed_TD), by_document(query, documents), by_document(inputs.key, documents),
      by_document(inputs.value, documents), as_heads(output.mixed_TD), output.log_sums, unread,
      unread, /*attn_bias=*/none, /*cum_seq_q=*/none, /*cum_seq_k=*/none, documents.longest(),
      documents.longest(), kCudnnDropout, kIsCausalForCudnn, scale_of(inputs));
  return {by_token(of_query), by_token(of_key), by_token(of_value)};
}

}  // namespace sherd::ops::cuda
