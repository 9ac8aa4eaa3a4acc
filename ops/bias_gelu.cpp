#include "ops/bias_gelu.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& bias) {
    RECORD_FUNCTION("sherd::bias_gelu", Recorded({input}));
    const at::Tensor dense = input.contiguous();
    context->save_for_backward({dense, bias});
    return choose_backend(*context, input).bias_gelu(dense, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::bias_gelu_backward", Recorded({gradients[0]}));
    once_differentiable("sherd::bias_gelu");
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &bias = saved[1];
    const BiasGeluGradients grads = chosen_backend(*context).bias_gelu_backward(
        gradients[0], input, bias, context->needs_input_grad(1));
    return {grads.input, deliver_sum(bias, grads.bias)};
  }
};

}  // namespace

at::Tensor bias_gelu(const at::Tensor& input, const at::Tensor& bias) {
  return BiasGelu::apply(input, bias);
}

}  // namespace sherd::ops
