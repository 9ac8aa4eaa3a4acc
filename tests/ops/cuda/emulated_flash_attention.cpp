// Stands for LibTorch's flash attention, which has kernels for GPUs alone: the same operators on
// CPU tensors, which take what those take and compute as the plain back end does, in fp32.

#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "tests/ops/cuda/emulated_gpu.h"
#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda::test {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalSize = std::optional<c10::SymInt>;

Documents documents_of(const at::Tensor& offsets) {
  TORCH_CHECK(offsets.scalar_type() == at::kInt && offsets.is_contiguous());
  const at::Tensor wide = offsets.to(at::kLong);
  const auto* const begin = wide.const_data_ptr<int64_t>();
  return Documents(std::vector<int64_t>(begin, begin + wide.numel()));
}

// What LibTorch's sizes of windows are to the plain back end.
AttentionScores scores_of(std::optional<double> scale, const OptionalSize& left,
                          const OptionalSize& right) {
  TORCH_CHECK(left.has_value() == right.has_value() && (!left || *right == 0));
  const bool has_window = left && !emulated_gpu().flash_ignores_windows;
  return {.scale = *scale, .window = has_window ? left->expect_int() + 1 : 0};
}

// What LibTorch refuses, and what would not be causal attention of these documents.
AttentionInputs inputs_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const at::Tensor& offsets, const at::Tensor& key_offsets,
                          const c10::SymInt& longest, double dropout, bool is_causal,
                          const AttentionScores& scores) {
  const Documents documents = documents_of(offsets);
  given_bounds().push_back(offsets);
  for (const at::Tensor& heads : {query, key, value}) {
    TORCH_CHECK(heads.dim() == 3 && heads.stride(2) == 1 && heads.size(2) % 8 == 0);
    TORCH_CHECK(heads.size(2) == query.size(2) && heads.size(2) <= 256);
    TORCH_CHECK(heads.scalar_type() == at::kBFloat16 || heads.scalar_type() == at::kHalf);
  }
  TORCH_CHECK(at::equal(offsets, key_offsets) && longest == documents.longest());
  TORCH_CHECK(dropout == 0 && is_causal);
  return {query.to(at::kFloat),
          key.to(at::kFloat),
          value.to(at::kFloat),
          documents,
          at::Tensor(),
          AttentionKernel::Auto,
          scores};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const OptionalTensor& offsets, const OptionalTensor& key_offsets, c10::SymInt longest,
    c10::SymInt /*longest_key*/, double dropout, bool is_causal, bool /*debug*/,
    std::optional<double> scale, OptionalSize left, OptionalSize right,
    const OptionalTensor& /*used*/, const OptionalTensor& /*slopes*/) {
  const AttentionOutput output =
      reference().attention(inputs_of(query, key, value, *offsets, *key_offsets, longest, dropout,
                                      is_causal, scores_of(scale, left, right)));
  const at::Tensor state = at::empty({2}, at::kUInt64);
  return {output.mixed_TD.view(query.sizes()).to(query.scalar_type()),
          output.log_sums.view({query.size(1), query.size(0)}), state, state, at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& log_sums, const at::Tensor& offsets,
    const at::Tensor& key_offsets, c10::SymInt longest, c10::SymInt /*longest_key*/, double dropout,
    bool is_causal, const at::Tensor& /*state*/, const at::Tensor& /*unused*/,
    std::optional<double> scale, OptionalSize left, OptionalSize right) {
  const AttentionInputs inputs = inputs_of(query, key, value, offsets, key_offsets, longest,
                                           dropout, is_causal, scores_of(scale, left, right));
  TORCH_CHECK(grad.sizes() == query.sizes());
  const at::Tensor again = reference().attention(inputs).mixed_TD.to(out.scalar_type());
  TORCH_CHECK(at::equal(out.flatten(1), again));
  const AttentionGradients grads = reference().attention_backward(
      inputs, {at::Tensor(), log_sums.reshape({-1})}, grad.flatten(1).to(at::kFloat));
  const c10::ScalarType dtype = query.scalar_type();
  return {grads.query.to(dtype), grads.key.to(dtype), grads.value.to(dtype)};
}

}  // namespace

std::vector<at::Tensor>& given_bounds() {
  static std::vector<at::Tensor> given;
  return given;
}

TORCH_LIBRARY_IMPL(aten, CPU, operators) {
  operators.impl("_flash_attention_forward", TORCH_FN(forward));
  operators.impl("_flash_attention_backward", TORCH_FN(backward));
}

}  // namespace sherd::ops::cuda::test
