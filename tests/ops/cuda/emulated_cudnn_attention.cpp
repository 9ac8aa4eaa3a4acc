// Stands for LibTorch's attention by cuDNN, which has kernels for GPUs alone: the same operators on
// CPU tensors, which take what those take and compute as the plain back end does, in fp32.

#include <optional>
#include <tuple>

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "tests/ops/cuda/emulated_gpu.h"
#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda::test {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// What LibTorch and cuDNN refuse or compute wrongly, and what would not be causal attention.
AttentionInputs dense_inputs(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, double dropout, bool is_causal,
                             std::optional<double> scale) {
  const auto by_token = [](const at::Tensor& heads) {
    return heads.transpose(1, 2).flatten(0, 1).to(at::kFloat);
  };
  for (const at::Tensor& heads : {query, key, value}) {
    TORCH_CHECK(heads.dim() == 4 && heads.stride(3) == 1 && heads.size(3) % 8 == 0);
    TORCH_CHECK(heads.size(3) == query.size(3) && heads.size(3) <= 128);
    TORCH_CHECK(heads.size(0) == query.size(0) && heads.size(2) == query.size(2));
    TORCH_CHECK(heads.stride(1) % 8 == 0 && heads.stride(2) % 8 == 0);
    TORCH_CHECK(reinterpret_cast<std::uintptr_t>(heads.const_data_ptr()) % 16 == 0);
    TORCH_CHECK(heads.scalar_type() == at::kBFloat16 || heads.scalar_type() == at::kHalf);
  }
  TORCH_CHECK(query.size(1) % key.size(1) == 0 && key.size(1) == value.size(1));
  TORCH_CHECK(query.size(2) > 1 && dropout == 0 && is_causal);
  return {by_token(query),  by_token(key),
          by_token(value),  Documents::of_equal_length(query.size(0), query.size(2)),
          at::Tensor(),     AttentionKernel::Auto,
          {.scale = *scale}};
}

void fail_if(const std::string& problem) {
  emulated_gpu().cudnn_calls += 1;
  TORCH_CHECK(problem.empty(), problem, "\nand a second line");
  TORCH_CHECK_WITH(OutOfMemoryError, !emulated_gpu().cudnn_ends_memory, "memory has ended");
}

// [T, …] as [B, N, L, H], of the layout that LibTorch gives what it returns.
at::Tensor as_dense(const at::Tensor& tokens, const at::Tensor& like, std::size_t result = 0) {
  return (tokens * emulated_gpu().cudnn_factors[result])
      .view({like.size(0), like.size(2), like.size(1), like.size(3)})
      .transpose(1, 2)
      .to(like.scalar_type());
}

// The same of gradients.
at::Tensor as_gradient(const at::Tensor& tokens, const at::Tensor& like, std::size_t result) {
  const at::Tensor gradient = as_dense(tokens, like, result);
  if (const int64_t last = emulated_gpu().cudnn_gradient_tokens; last >= 0) {
    gradient.slice(2, last).zero_();
  }
  return gradient;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
dense_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
              const OptionalTensor& bias, bool keeps_log_sums, double dropout, bool is_causal,
              bool /*debug*/, std::optional<double> scale) {
  TORCH_CHECK(!bias && keeps_log_sums);
  const AttentionInputs inputs = dense_inputs(query, key, value, dropout, is_causal, scale);
  fail_if(emulated_gpu().cudnn_forward_problem);
  const AttentionOutput output = reference().attention(inputs);
  const at::Tensor none;
  return {as_dense(output.mixed_TD, query),
          output.log_sums.view({query.size(0), query.size(1), query.size(2), 1}),
          none,
          none,
          query.size(2),
          query.size(2),
          at::empty({}, at::kLong),
          at::empty({}, at::kLong),
          none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> dense_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& seed,
    const at::Tensor& offset, const at::Tensor& bias, const at::Tensor& bounds,
    const at::Tensor& key_bounds, c10::SymInt longest, c10::SymInt longest_key, double dropout,
    bool is_causal, std::optional<double> scale) {
  const AttentionInputs inputs = dense_inputs(query, key, value, dropout, is_causal, scale);
  TORCH_CHECK(seed.defined() && offset.defined());
  TORCH_CHECK(!bias.defined() && !bounds.defined() && !key_bounds.defined());
  TORCH_CHECK(longest == query.size(2) && longest_key == query.size(2));
  for (const at::Tensor& heads : {grad, out}) {
    TORCH_CHECK(heads.sizes() == query.sizes() && heads.transpose(1, 2).is_contiguous());
  }
  fail_if(emulated_gpu().cudnn_backward_problem);
  TORCH_CHECK(at::allclose(out, as_dense(reference().attention(inputs).mixed_TD, query), 0, 0,
                           /*equal_nan=*/true));
  const AttentionGradients grads =
      reference().attention_backward(inputs, {at::Tensor(), log_sums.reshape({-1})},
                                     grad.transpose(1, 2).flatten(2).flatten(0, 1).to(at::kFloat));
  return {as_gradient(grads.query, query, 1), as_gradient(grads.key, key, 2),
          as_gradient(grads.value, value, 3)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, operators) {
  operators.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(dense_forward));
  operators.impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(dense_backward));
}

}  // namespace sherd::ops::cuda::test
