#include "ops/layer_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/dispatch.h"
#include "ops/gradient.h"
#include "ops/norm_again.h"
#include "ops/norm_inputs.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Parameters {
  const at::Tensor& weight;
  const at::Tensor& bias;
  bool weight_wants_gradient = false;
  bool bias_wants_gradient = false;
};

// statistics [rows, 2]: mean and 1 ÷ deviation of each row
at::Tensor fast_forward(const NormInputs& inputs, const Parameters& of, double epsilon,
                        at::Tensor& statistics) {
  const int64_t width = of.weight.size(0);
  statistics = at::empty({inputs.sum.numel() / width, 2}, of.weight.options().dtype(at::kFloat));
  at::Tensor output = at::empty(inputs.sum.sizes(), of.weight.options());
  cpu::with_dtype(of.weight, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(statistics.size(0), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().layer_norm(inputs.terms<T>(), cpu::data<T>(of.weight),
                                   cpu::data<T>(of.bias), static_cast<float>(epsilon),
                                   cpu::mutable_data<T>(output),
                                   cpu::mutable_data<float>(statistics), width, begin, end);
    });
  });
  return output;
}

at::Tensor plain_forward(const at::Tensor& x, const Parameters& of, double epsilon,
                         at::Tensor& statistics) {
  const at::Tensor wide = x.to(statistics_dtype(x.scalar_type()));
  const at::Tensor mean = wide.mean(-1, /*keepdim=*/true);
  const at::Tensor centred = wide - mean;
  const at::Tensor inverse = centred.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  statistics = at::stack({mean, inverse});
  return (centred * inverse).mul_(of.weight).add_(of.bias).to(x.scalar_type());
}

struct LayerNormGradients {
  at::Tensor x;
  at::Tensor weight;
  at::Tensor bias;
};

LayerNormGradients fast_backward(const NormGradients& gradients, const at::Tensor& x,
                                 const Parameters& of, const at::Tensor& statistics) {
  const int64_t width = of.weight.size(0);
  at::Tensor grad_x = at::empty(x.sizes(), x.options());
  const cpu::ColumnSums of_weight(of.weight_wants_gradient ? width : 0);
  const cpu::ColumnSums of_bias(of.bias_wants_gradient ? width : 0);
  cpu::with_dtype(x, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(statistics.size(0), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().layer_norm_backward(
          cpu::data<T>(gradients.normalised), cpu::data<T>(gradients.sum), cpu::data<T>(x),
          cpu::data<T>(of.weight), cpu::data<float>(statistics), cpu::mutable_data<T>(grad_x),
          of_weight.of_thread(), of_bias.of_thread(), width, begin, end);
    });
  });
  const auto delivered = [](const at::Tensor& parameter, const cpu::ColumnSums& sums, bool wanted) {
    return wanted ? deliver_gradient(parameter, [&](at::Tensor& out) { out.copy_(sums.total()); })
                  : at::Tensor();
  };
  const at::Tensor grad_weight = delivered(of.weight, of_weight, of.weight_wants_gradient);
  return {grad_x, grad_weight, delivered(of.bias, of_bias, of.bias_wants_gradient)};
}

// With n = (x − mean) ÷ deviation and g = gradient × weight:
// d x = (g − mean(g) − n · mean(g · n)) ÷ deviation.
LayerNormGradients plain_backward(const NormGradients& gradients, const at::Tensor& x,
                                  const Parameters& of, const at::Tensor& statistics) {
  const at::Tensor mean = statistics[0], inverse = statistics[1];
  const at::Tensor grad_output = gradients.normalised.to(mean.scalar_type());
  const at::Tensor normalised = (x - mean).mul_(inverse);
  const auto delivered = [&](const at::Tensor& parameter, const at::Tensor& rows, bool wanted) {
    const auto sum = [&](at::Tensor& out) {
      out.copy_(rows.reshape({-1, parameter.size(0)}).sum(0));
    };
    return wanted ? deliver_gradient(parameter, sum) : at::Tensor();
  };
  const at::Tensor grad_weight =
      delivered(of.weight, grad_output * normalised, of.weight_wants_gradient);
  const at::Tensor grad_bias = delivered(of.bias, grad_output, of.bias_wants_gradient);
  at::Tensor grad = grad_output * of.weight;
  const at::Tensor projection = (grad * normalised).mean(-1, /*keepdim=*/true);
  grad.sub_(grad.mean(-1, /*keepdim=*/true)).addcmul_(normalised, projection, -1).mul_(inverse);
  return {gradients.with_sum(grad).to(x.scalar_type()), grad_weight, grad_bias};
}

// The norm alone, or with the sum that it is of.
struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const at::Tensor& weight, const at::Tensor& bias,
                               const std::optional<at::Tensor>& residual, double epsilon) {
    RECORD_FUNCTION("sherd::layer_norm", {});
    const bool fast = cpu::serves(input);
    const NormInputs inputs(input, residual, fast);
    const Parameters parameters{weight, bias};
    at::Tensor statistics;
    at::Tensor output = fast ? fast_forward(inputs, parameters, epsilon, statistics)
                             : plain_forward(inputs.sum, parameters, epsilon, statistics);
    context->saved_data["fast"] = fast;
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["version"] = static_cast<int64_t>(output._version());
    context->set_materialize_grads(false);
    context->save_for_backward({inputs.sum, weight, bias, statistics});
    return residual ? variable_list{output, inputs.sum} : variable_list{output};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::layer_norm_backward", {});
    once_differentiable("sherd::layer_norm");
    context->saved_data.erase("output");
    const auto saved = context->get_saved_variables();
    const Parameters parameters{saved[1], saved[2], context->needs_input_grad(1),
                                context->needs_input_grad(2)};
    const bool fast = context->saved_data["fast"].toBool();
    const NormGradients grads(gradients, saved[0]);
    const LayerNormGradients result = fast ? fast_backward(grads, saved[0], parameters, saved[3])
                                           : plain_backward(grads, saved[0], parameters, saved[3]);
    const at::Tensor grad_residual = gradients.size() == 2 ? result.x : at::Tensor();
    return {result.x, result.weight, result.bias, grad_residual, {}};
  }

  static at::Tensor again(AutogradContext& context) {
    RECORD_FUNCTION("sherd::layer_norm_again", {});
    const auto saved = context.get_saved_variables();
    const bool fast = context.saved_data.at("fast").toBool();
    const double epsilon = context.saved_data.at("epsilon").toDouble();
    const Parameters parameters{saved[1], saved[2]};
    at::Tensor statistics;
    return fast ? fast_forward({saved[0], std::nullopt, fast}, parameters, epsilon, statistics)
                : plain_forward(saved[0], parameters, epsilon, statistics);
  }
};

}  // namespace

NormAgain layer_norm_again(const at::Tensor& tensor) {
  return again_of<LayerNorm>(tensor);
}

at::Tensor layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      double epsilon) {
  return LayerNorm::apply(input, weight, bias, std::nullopt, epsilon).front();
}

NormalisedSum add_layer_norm(const at::Tensor& input, const at::Tensor& residual,
                             const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  const variable_list both = LayerNorm::apply(input, weight, bias, residual, epsilon);
  return {both[1], both[0]};
}

}  // namespace sherd::ops
