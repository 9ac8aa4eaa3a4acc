#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/logsumexp.h>

#include "ops/plain/plain_backend.h"
#include "ops/shared/blockwise_attention.h"
#include "ops/shared/gradient.h"

namespace sherd::ops::plain {
namespace {

// cap(scale × scores): [B × K × R / N, N, n, S] in fp32 or wider
at::Tensor scaled(const at::Tensor& scores, const ScoreBlock& block) {
  const int64_t columns = scores.size(-1);
  const int64_t batch = scores.numel() / (block.heads * block.queries * columns);
  const at::Tensor wide = scores.to(statistics_dtype(scores.scalar_type()))
                              .view({batch, block.heads, block.queries, columns})
                              .mul(block.scale);
  const double cap = block.scores.soft_cap;
  return cap == 0 ? wide : wide.div_(cap).tanh_().mul_(cap);
}

// Minus slopes × distances, and −∞ where no key is seen.
at::Tensor biased(const at::Tensor& scaled, const ScoreBlock& block) {
  const int64_t columns = scaled.size(-1);
  const at::Tensor positions =
      at::arange(block.first_query, block.first_query + block.queries, scaled.options());
  const at::Tensor keys = at::arange(block.first_key, block.first_key + columns, scaled.options());
  const at::Tensor distances = positions.unsqueeze(1) - keys;
  if (block.slopes.defined()) {
    scaled.sub_(block.slopes.view({-1, 1, 1}) * distances);
  }
  at::Tensor hidden = distances < 0;
  if (block.scores.window != 0) {
    hidden.logical_or_(distances >= block.scores.window);
  }
  return scaled.masked_fill_(hidden, kMasked);
}

void softmax(at::Tensor& scores, at::Tensor& log_sums, const ScoreBlock& block) {
  const at::Tensor wide = biased(scaled(scores, block), block);
  const at::Tensor sums = at::logsumexp(wide, -1, /*keepdim=*/true);
  log_sums.copy_(sums.view(log_sums.sizes()));
  scores.copy_((wide - sums).exp_().view(scores.sizes()));
}

// With probabilities p and their gradient g: the gradient of a capped score is p (g − Σ p g), and
// of the score before its cap c that × (1 − (capped ÷ c)²).
void softmax_backward(at::Tensor& scores, at::Tensor& grad, const at::Tensor& log_sums,
                      const ScoreBlock& block) {
  const at::Tensor capped = scaled(scores, block);
  const double cap = block.scores.soft_cap;
  const at::Tensor slope_of_cap = cap == 0 ? at::Tensor() : 1 - (capped / cap).square_();
  const at::Tensor wide = biased(capped, block);
  std::vector<int64_t> row_shape = wide.sizes().vec();
  row_shape.back() = 1;
  const at::Tensor p = (wide - log_sums.view(row_shape)).exp_();
  const at::Tensor g = grad.to(p.scalar_type()).view(p.sizes());
  const at::Tensor dots = (p * g).sum(-1, /*keepdim=*/true);
  const at::Tensor of_scores = ((g - dots) * p).mul_(block.scale);
  grad.copy_((cap == 0 ? of_scores : of_scores.mul_(slope_of_cap)).view(grad.sizes()));
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
