#include "ops/linear.h"

#include <vector>

#include <ATen/ops/mm.h>
#include <ATen/record_function.h>
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
                            const at::Tensor& weight) {
    RECORD_FUNCTION("sherd::linear", {});
    context->save_for_backward({input, weight});
    return with_last_size(at::mm(rows(input), weight.t()), input.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::linear_backward", {});
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const at::Tensor grad_output = rows(gradients[0]);
    at::Tensor grad_input;
    at::Tensor grad_weight;
    if (context->needs_input_grad(0)) {
      grad_input = with_last_size(at::mm(grad_output, weight), input.sizes());
    }
    if (context->needs_input_grad(1)) {
      grad_weight = deliver_gradient(
          weight, [&](at::Tensor& out) { at::mm_out(out, grad_output.t(), rows(input)); });
    }
    return {grad_input, grad_weight};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight) {
  return Linear::apply(input, weight);
}

}  // namespace sherd::ops
