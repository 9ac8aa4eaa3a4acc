#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/dispatch.h"
#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor fast_forward(const at::Tensor& input, const at::Tensor& weight, double epsilon,
                        at::Tensor& inverse_rms) {
  const int64_t width = weight.size(0);
  inverse_rms = at::empty({input.numel() / width}, input.options().dtype(at::kFloat));
  at::Tensor output = at::empty(input.sizes(), input.options());
  cpu::with_dtype(input, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(inverse_rms.numel(), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().rms_norm(cpu::data<T>(input), cpu::data<T>(weight),
                                 static_cast<float>(epsilon), cpu::mutable_data<T>(output),
                                 cpu::mutable_data<float>(inverse_rms), width, begin, end);
    });
  });
  return output;
}

variable_list fast_backward(const at::Tensor& grad_output, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& inverse_rms,
                            bool wants_weight) {
  const int64_t width = weight.size(0);
  at::Tensor grad_input = at::empty(input.sizes(), input.options());
  cpu::ColumnSums sums(wants_weight ? width : 0);
  cpu::with_dtype(input, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(inverse_rms.numel(), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().rms_norm_backward(cpu::data<T>(grad_output), cpu::data<T>(input),
                                          cpu::data<T>(weight), cpu::data<float>(inverse_rms),
                                          cpu::mutable_data<T>(grad_input), sums.of_thread(), width,
                                          begin, end);
    });
  });
  at::Tensor grad_weight;
  if (wants_weight) {
    grad_weight = deliver_gradient(weight, [&](at::Tensor& out) { out.copy_(sums.total()); });
  }
  return {grad_input, grad_weight, at::Tensor()};
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, double epsilon) {
    RECORD_FUNCTION("sherd::rms_norm", {});
    context->saved_data["fast"] = cpu::serves(input);
    if (cpu::serves(input)) {
      const at::Tensor rows = input.contiguous();
      at::Tensor inverse_rms;
      at::Tensor output = fast_forward(rows, weight, epsilon, inverse_rms);
      context->save_for_backward({rows, weight, inverse_rms});
      return output;
    }
    const at::Tensor wide = input.to(statistics_dtype(input.scalar_type()));
    const at::Tensor inverse_rms = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
    context->save_for_backward({input, weight, inverse_rms});
    return (wide * inverse_rms).to(input.scalar_type()).mul_(weight);
  }

  // With n = input ÷ rms and g = gradient × weight: d input = (g − n · mean(g · n)) ÷ rms.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::rms_norm_backward", {});
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &inverse_rms = saved[2];
    if (context->saved_data["fast"].toBool()) {
      return fast_backward(gradients[0].contiguous(), input, weight, inverse_rms,
                           context->needs_input_grad(1));
    }
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
