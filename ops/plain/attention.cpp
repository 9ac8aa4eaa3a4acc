#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/logsumexp.h>

#include "ops/plain/plain_backend.h"
#include "ops/shared/blockwise_attention.h"
#include "ops/shared/gradient.h"

namespace sherd::ops::plain {
namespace {

// scale × scores − slopes × distances, −∞ in the future: [B × K × R / N, N, n, S] in fp32 or wider
at::Tensor biased(const at::Tensor& scores, const ScoreBlock& block) {
  const int64_t columns = scores.size(-1);
  const int64_t batch = scores.numel() / (block.heads * block.queries * columns);
  const at::Tensor wide = scores.to(statistics_dtype(scores.scalar_type()))
                              .view({batch, block.heads, block.queries, columns})
                              .mul(block.scale);
  const at::Tensor positions =
      at::arange(block.first_query, block.first_query + block.queries, wide.options());
  const at::Tensor distances = positions.unsqueeze(1) - at::arange(columns, wide.options());
  if (block.slopes.defined()) {
    wide.sub_(block.slopes.view({-1, 1, 1}) * distances);
  }
  return wide.masked_fill_(distances < 0, kMasked);
}

void softmax(at::Tensor& scores, at::Tensor& log_sums, const ScoreBlock& block) {
  const at::Tensor wide = biased(scores, block);
  const at::Tensor sums = at::logsumexp(wide, -1, /*keepdim=*/true);
  log_sums.copy_(sums.view(log_sums.sizes()));
  scores.copy_((wide - sums).exp_().view(scores.sizes()));
}

// With probabilities p and their gradient g: the gradient of a scaled score is p (g − Σ p g).
void softmax_backward(at::Tensor& scores, at::Tensor& grad, const at::Tensor& log_sums,
                      const ScoreBlock& block) {
  const at::Tensor wide = biased(scores, block);
  std::vector<int64_t> row_shape = wide.sizes().vec();
  row_shape.back() = 1;
  const at::Tensor p = (wide - log_sums.view(row_shape)).exp_();
  const at::Tensor g = grad.to(p.scalar_type()).view(p.sizes());
  const at::Tensor dots = (p * g).sum(-1, /*keepdim=*/true);
  grad.copy_(((g - dots) * p).mul_(block.scale).view(grad.sizes()));
  scores.copy_(p.view(scores.sizes()));
}

void bmm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::bmm_out(out, a, b);
}

constexpr AttentionSteps kSteps = {&bmm, &softmax, &softmax_backward};

AttentionOutput attention(const AttentionInputs& inputs) {
  return blockwise_attention(kSteps, inputs);
}

AttentionGradients attention_backward(const AttentionInputs& inputs, const AttentionOutput& output,
                                      const at::Tensor& grad_mixed_TD) {
  return blockwise_attention_backward(kSteps, inputs, output.log_sums, grad_mixed_TD);
}

}  // namespace

void add_attention(Backend& backend) {
  backend.attention_choices = [] { return std::vector<AttentionChoice>(); };
  backend.attention = &attention;
  backend.attention_backward = &attention_backward;
  backend.decode_attention = &attention_of_one_query;
}

}  // namespace sherd::ops::plain
