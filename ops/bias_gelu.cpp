#include "ops/bias_gelu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/dispatch.h"
#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kTanh = "tanh";

at::Tensor wide_sum(const at::Tensor& input, const at::Tensor& bias) {
  return input.to(statistics_dtype(input.scalar_type())) + bias;
}

at::Tensor fast_forward(const at::Tensor& input, const at::Tensor& bias) {
  const int64_t width = bias.size(0);
  at::Tensor output = at::empty(input.sizes(), input.options());
  cpu::with_dtype(input, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(input.numel() / width, width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().bias_gelu(cpu::data<T>(input), cpu::data<T>(bias),
                                  cpu::mutable_data<T>(output), width, begin, end);
    });
  });
  return output;
}

variable_list fast_backward(const at::Tensor& grad_output, const at::Tensor& input,
                            const at::Tensor& bias, bool wants_bias) {
  const int64_t width = bias.size(0);
  at::Tensor grad_input = at::empty(input.sizes(), input.options());
  const cpu::ColumnSums sums(wants_bias ? width : 0);
  cpu::with_dtype(input, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(input.numel() / width, width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().bias_gelu_backward(cpu::data<T>(grad_output), cpu::data<T>(input),
                                           cpu::data<T>(bias), cpu::mutable_data<T>(grad_input),
                                           sums.of_thread(), width, begin, end);
    });
  });
  at::Tensor grad_bias;
  if (wants_bias) {
    grad_bias = deliver_gradient(bias, [&](at::Tensor& out) { out.copy_(sums.total()); });
  }
  return {grad_input, grad_bias};
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& bias) {
    RECORD_FUNCTION("sherd::bias_gelu", {});
    context->saved_data["fast"] = cpu::serves(input);
    if (cpu::serves(input)) {
      const at::Tensor dense = input.contiguous();
      context->save_for_backward({dense, bias});
      return fast_forward(dense, bias);
    }
    context->save_for_backward({input, bias});
    return at::gelu(wide_sum(input, bias), kTanh).to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::bias_gelu_backward", {});
    once_differentiable("sherd::bias_gelu");
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &bias = saved[1];
    if (context->saved_data["fast"].toBool()) {
      return fast_backward(gradients[0].contiguous(), input, bias, context->needs_input_grad(1));
    }
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
