#include "ops/layer_norm.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
    const at::Tensor wide = input.to(statistics_dtype(input.scalar_type()));
    const at::Tensor mean = wide.mean(-1, /*keepdim=*/true);
    const at::Tensor centred = wide - mean;
    const at::Tensor inverse_deviation =
        centred.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
    context->save_for_backward({input, weight, bias, mean, inverse_deviation});
    return (centred * inverse_deviation).mul_(weight).add_(bias).to(input.scalar_type());
  }

  // With n = (input − mean) ÷ deviation and g = gradient × weight:
  // d input = (g − mean(g) − n · mean(g · n)) ÷ deviation.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &bias = saved[2];
    const at::Tensor &mean = saved[3], &inverse_deviation = saved[4];
    const at::Tensor grad_output = gradients[0].to(mean.scalar_type());
    const at::Tensor normalised = (input - mean).mul_(inverse_deviation);
    const auto sum_over_rows = [&](const at::Tensor& rows) {
      return [&](at::Tensor& out) { out.copy_(rows.reshape({-1, weight.size(0)}).sum(0)); };
    };
    at::Tensor grad_input;
    at::Tensor grad_weight;
    at::Tensor grad_bias;
    if (context->needs_input_grad(1)) {
      const at::Tensor scaled = grad_output * normalised;
      grad_weight = deliver_gradient(weight, sum_over_rows(scaled));
    }
    if (context->needs_input_grad(2)) {
      grad_bias = deliver_gradient(bias, sum_over_rows(grad_output));
    }
    if (context->needs_input_grad(0)) {
      at::Tensor grad = grad_output * weight;
      const at::Tensor projection = (grad * normalised).mean(-1, /*keepdim=*/true);
      grad.sub_(grad.mean(-1, /*keepdim=*/true))
          .addcmul_(normalised, projection, -1)
          .mul_(inverse_deviation);
      grad_input = grad.to(input.scalar_type());
    }
    return {grad_input, grad_weight, grad_bias, at::Tensor()};
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      double epsilon) {
  return LayerNorm::apply(input, weight, bias, epsilon);
}

}  // namespace sherd::ops
