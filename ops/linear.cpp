#include "ops/linear.h"

#include <vector>

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [..., columns] as a matrix: a view where the strides allow it.
at::Tensor rows(const at::Tensor& tensor) {
  return tensor.dim() == 2 ? tensor : tensor.reshape({-1, tensor.size(-1)});
}

at::Tensor with_last_size(const at::Tensor& matrix, at::IntArrayRef sizes) {
  if (sizes.size() == 2) {
    return matrix;
  }
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = matrix.size(1);
  return matrix.view(shape);
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    context->save_for_backward({input, weight, bias.value_or(at::Tensor())});
    const at::Tensor product =
        bias ? at::addmm(*bias, rows(input), weight.t()) : at::mm(rows(input), weight.t());
    return with_last_size(product, input.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &bias = saved[2];
    const at::Tensor grad_output = rows(gradients[0]);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    at::Tensor grad_bias;
    if (context->needs_input_grad(0)) {
      grad_input = with_last_size(at::mm(grad_output, weight), input.sizes());
    }
    if (context->needs_input_grad(1)) {
      grad_weight = deliver_gradient(
          weight, [&](at::Tensor& out) { at::mm_out(out, grad_output.t(), rows(input)); });
    }
    if (bias.defined() && context->needs_input_grad(2)) {
      grad_bias = deliver_gradient(bias, [&](at::Tensor& out) {
        out.copy_(grad_output.sum(0, /*keepdim=*/false, statistics_dtype(bias.scalar_type())));
      });
    }
    return {grad_input, grad_weight, grad_bias};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  return Linear::apply(input, weight, bias);
}

}  // namespace sherd::ops
