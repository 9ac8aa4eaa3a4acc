#include "ops/bias_gelu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kTanh = "tanh";

at::Tensor wide_sum(const at::Tensor& input, const at::Tensor& bias) {
  return input.to(statistics_dtype(input.scalar_type())) + bias;
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& bias) {
    context->save_for_backward({input, bias});
    return at::gelu(wide_sum(input, bias), kTanh).to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &bias = saved[1];
    const at::Tensor sum = wide_sum(input, bias);
    const at::Tensor grad = at::gelu_backward(gradients[0].to(sum.scalar_type()), sum, kTanh);
    at::Tensor grad_bias;
    if (context->needs_input_grad(1)) {
      grad_bias = deliver_gradient(bias, [&](at::Tensor& out) {
        out.copy_(grad.reshape({-1, bias.size(0)}).sum(0));
      });
    }
    return {grad.to(input.scalar_type()), grad_bias};
  }
};

}  // namespace

at::Tensor bias_gelu(const at::Tensor& input, const at::Tensor& bias) {
  return BiasGelu::apply(input, bias);
}

}  // namespace sherd::ops
