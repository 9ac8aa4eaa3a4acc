#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, double epsilon) {
    const at::Tensor wide = input.to(statistics_dtype(input.scalar_type()));
    const at::Tensor inverse_rms = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
    context->save_for_backward({input, weight, inverse_rms});
    return (wide * inverse_rms).to(input.scalar_type()).mul_(weight);
  }

  // With n = input ÷ rms and g = gradient × weight: d input = (g − n · mean(g · n)) ÷ rms.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &inverse_rms = saved[2];
    const auto wide_dtype = inverse_rms.scalar_type();
    const at::Tensor normalised = input.to(wide_dtype) * inverse_rms;
    const at::Tensor grad_output = gradients[0].to(wide_dtype);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      grad_weight = deliver_gradient(weight, [&](at::Tensor& out) {
        const at::Tensor rounded = normalised.to(input.scalar_type());
        out.copy_((grad_output * rounded).reshape({-1, weight.size(0)}).sum(0));
      });
    }
    if (context->needs_input_grad(0)) {
      at::Tensor grad = grad_output * weight;
      const at::Tensor projection = (grad * normalised).mean(-1, /*keepdim=*/true);
      grad.addcmul_(normalised, projection, -1).mul_(inverse_rms);
      grad_input = grad.to(input.scalar_type());
    }
    return {grad_input, grad_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  return RmsNorm::apply(input, weight, epsilon);
}

}  // namespace sherd::ops
