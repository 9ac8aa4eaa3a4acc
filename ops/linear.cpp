#include "ops/linear.h"

#include <vector>

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/dispatch.h"
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

// [columns], in fp32 or wider
at::Tensor sum_rows(const at::Tensor& matrix) {
  if (!cpu::serves(matrix)) {
    return matrix.sum(0, /*keepdim=*/false, statistics_dtype(matrix.scalar_type()));
  }
  const at::Tensor dense = matrix.contiguous();
  const int64_t width = dense.size(1);
  const cpu::ColumnSums sums(width);
  cpu::with_dtype(dense, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(dense.size(0), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().add_rows(cpu::data<T>(dense), sums.of_thread(), width, begin, end);
    });
  });
  return sums.total();
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    RECORD_FUNCTION("sherd::linear", {});
    context->save_for_backward({input, weight, bias.value_or(at::Tensor())});
    const at::Tensor product =
        bias ? at::addmm(*bias, rows(input), weight.t()) : at::mm(rows(input), weight.t());
    return with_last_size(product, input.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::linear_backward", {});
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
      grad_bias =
          deliver_gradient(bias, [&](at::Tensor& out) { out.copy_(sum_rows(grad_output)); });
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
