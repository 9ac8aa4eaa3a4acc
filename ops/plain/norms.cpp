// RMSNorm and LayerNorm: n = (x − mean) ÷ deviation, where RMSNorm has no mean.

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "ops/plain/plain_backend.h"
#include "ops/shared/gradient.h"

namespace sherd::ops::plain {
namespace {

// x̂ × the weight, rounded to `dtype`.
at::Tensor with_gain(const at::Tensor& n, const NormParameters& of, c10::ScalarType dtype) {
  if (of.is_layer_norm()) {
    return (n * of.weight).add_(of.bias).to(dtype);
  }
  switch (of.gain) {
    case RmsGain::Rounded:
      return n.to(dtype).mul(of.weight);
    case RmsGain::Wide:
      return (n * of.weight).to(dtype);
    default:
      return (n * (of.weight.to(n.scalar_type()) + 1)).to(dtype);
  }
}

// The statistics are [2, ..., 1]: mean and 1 ÷ deviation.
NormOutput norm(const NormInputs& inputs, const NormParameters& of) {
  const at::Tensor x = inputs.residual.defined() ? inputs.input + inputs.residual : inputs.input;
  const auto dtype = x.scalar_type();
  const at::Tensor wide = x.to(statistics_dtype(dtype));
  const at::Tensor mean_of_x = wide.mean(-1, /*keepdim=*/true);
  const at::Tensor mean = of.is_layer_norm() ? mean_of_x : at::zeros_like(mean_of_x);
  const at::Tensor centred = wide - mean;
  const at::Tensor inverse = centred.square().mean(-1, /*keepdim=*/true).add_(of.epsilon).rsqrt_();
  const at::Tensor n = centred * inverse;
  return {x, with_gain(n, of, dtype), at::stack({mean, inverse})};
}

at::Tensor sum_of_rows(const at::Tensor& rows) {
  return rows.reshape({-1, rows.size(-1)}).sum(0);
}

// With g = gradient × weight: d x = (g − mean(g) − n · mean(g · n)) ÷ deviation.
NormInputGradients norm_backward(const NormGradients& gradients, const at::Tensor& x,
                                 const NormParameters& of, const at::Tensor& statistics,
                                 WantedGradients wanted) {
  const at::Tensor mean = statistics[0], inverse = statistics[1];
  const at::Tensor n = (x - mean).mul_(inverse);
  const at::Tensor grad_output = gradients.normalised.to(mean.scalar_type());
  NormInputGradients result;
  if (wanted.weight) {
    const bool is_rounded = !of.is_layer_norm() && of.gain == RmsGain::Rounded;
    const at::Tensor factor = is_rounded ? n.to(x.scalar_type()) : n;
    result.weight = sum_of_rows(grad_output * factor);
  }
  if (wanted.bias) {
    result.bias = sum_of_rows(grad_output);
  }
  const bool counts_from_one = of.gain == RmsGain::OnePlus;
  at::Tensor grad =
      grad_output * (counts_from_one ? of.weight.to(mean.scalar_type()) + 1 : of.weight);
  const at::Tensor projection = (grad * n).mean(-1, /*keepdim=*/true);
  if (of.is_layer_norm()) {
    grad.sub_(grad.mean(-1, /*keepdim=*/true));
  }
  grad.addcmul_(n, projection, -1).mul_(inverse);
  result.sum = (gradients.sum.defined() ? grad + gradients.sum : grad).to(x.scalar_type());
  return result;
}

}  // namespace

void add_norms(Backend& backend) {
  backend.norm = &norm;
  backend.norm_backward = &norm_backward;
}

}  // namespace sherd::ops::plain
