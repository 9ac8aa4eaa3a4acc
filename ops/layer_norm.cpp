#include "ops/layer_norm.h"

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

at::Tensor fast_forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                        double epsilon, at::Tensor& statistics) {
  const int64_t width = weight.size(0);
  statistics = at::empty({input.numel() / width, 2}, input.options().dtype(at::kFloat));
  at::Tensor output = at::empty(input.sizes(), input.options());
  cpu::with_dtype(input, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(statistics.size(0), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().layer_norm(cpu::data<T>(input), cpu::data<T>(weight), cpu::data<T>(bias),
                                   static_cast<float>(epsilon), cpu::mutable_data<T>(output),
                                   cpu::mutable_data<float>(statistics), width, begin, end);
    });
  });
  return output;
}

variable_list fast_backward(const at::Tensor& grad_output, const variable_list& saved,
                            bool wants_weight, bool wants_bias) {
  const at::Tensor &input = saved[0], &weight = saved[1], &bias = saved[2], &statistics = saved[3];
  const int64_t width = weight.size(0);
  at::Tensor grad_input = at::empty(input.sizes(), input.options());
  const cpu::ColumnSums of_weight(wants_weight ? width : 0), of_bias(wants_bias ? width : 0);
  cpu::with_dtype(input, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(statistics.size(0), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().layer_norm_backward(cpu::data<T>(grad_output), cpu::data<T>(input),
                                            cpu::data<T>(weight), cpu::data<float>(statistics),
                                            cpu::mutable_data<T>(grad_input), of_weight.of_thread(),
                                            of_bias.of_thread(), width, begin, end);
    });
  });
  const auto delivered = [](const at::Tensor& parameter, const cpu::ColumnSums& sums, bool wanted) {
    return wanted ? deliver_gradient(parameter, [&](at::Tensor& out) { out.copy_(sums.total()); })
                  : at::Tensor();
  };
  const at::Tensor grad_weight = delivered(weight, of_weight, wants_weight);
  return {grad_input, grad_weight, delivered(bias, of_bias, wants_bias), at::Tensor()};
}

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
    RECORD_FUNCTION("sherd::layer_norm", {});
    context->saved_data["fast"] = cpu::serves(input);
    if (cpu::serves(input)) {
      const at::Tensor dense = input.contiguous();
      at::Tensor statistics;
      at::Tensor output = fast_forward(dense, weight, bias, epsilon, statistics);
      context->save_for_backward({dense, weight, bias, statistics});
      return output;
    }
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
    RECORD_FUNCTION("sherd::layer_norm_backward", {});
    const auto saved = context->get_saved_variables();
    if (context->saved_data["fast"].toBool()) {
      return fast_backward(gradients[0].contiguous(), saved, context->needs_input_grad(1),
                           context->needs_input_grad(2));
    }
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
