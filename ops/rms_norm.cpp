#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
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

at::Tensor fast_forward(const NormInputs& inputs, const at::Tensor& weight, double epsilon,
                        at::Tensor& inverse_rms) {
  const int64_t width = weight.size(0);
  inverse_rms = at::empty({inputs.sum.numel() / width}, weight.options().dtype(at::kFloat));
  at::Tensor output = at::empty(inputs.sum.sizes(), weight.options());
  cpu::with_dtype(weight, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(inverse_rms.numel(), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().rms_norm(inputs.terms<T>(), cpu::data<T>(weight),
                                 static_cast<float>(epsilon), cpu::mutable_data<T>(output),
                                 cpu::mutable_data<float>(inverse_rms), width, begin, end);
    });
  });
  return output;
}

at::Tensor plain_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                         at::Tensor& inverse_rms) {
  const at::Tensor wide = x.to(statistics_dtype(x.scalar_type()));
  inverse_rms = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  return (wide * inverse_rms).to(x.scalar_type()).mul_(weight);
}

struct RmsNormGradients {
  at::Tensor x;
  at::Tensor weight;
};

RmsNormGradients fast_backward(const NormGradients& gradients, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& inverse_rms,
                               bool wants_weight) {
  const int64_t width = weight.size(0);
  RmsNormGradients result{at::empty(x.sizes(), x.options()), {}};
  cpu::ColumnSums sums(wants_weight ? width : 0);
  cpu::with_dtype(x, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(inverse_rms.numel(), width, [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().rms_norm_backward(
          cpu::data<T>(gradients.normalised), cpu::data<T>(gradients.sum), cpu::data<T>(x),
          cpu::data<T>(weight), cpu::data<float>(inverse_rms), cpu::mutable_data<T>(result.x),
          sums.of_thread(), width, begin, end);
    });
  });
  if (wants_weight) {
    result.weight = deliver_gradient(weight, [&](at::Tensor& out) { out.copy_(sums.total()); });
  }
  return result;
}

// With n = x ÷ rms and g = gradient × weight: d x = (g − n · mean(g · n)) ÷ rms.
RmsNormGradients plain_backward(const NormGradients& gradients, const at::Tensor& x,
                                const at::Tensor& weight, const at::Tensor& inverse_rms,
                                bool wants_weight) {
  const auto wide_dtype = inverse_rms.scalar_type();
  const at::Tensor normalised = x.to(wide_dtype) * inverse_rms;
  const at::Tensor grad_output = gradients.normalised.to(wide_dtype);
  RmsNormGradients result;
  if (wants_weight) {
    result.weight = deliver_gradient(weight, [&](at::Tensor& out) {
      const at::Tensor rounded = normalised.to(x.scalar_type());
      out.copy_((grad_output * rounded).reshape({-1, weight.size(0)}).sum(0));
    });
  }
  at::Tensor grad = grad_output * weight;
  const at::Tensor projection = (grad * normalised).mean(-1, /*keepdim=*/true);
  grad.addcmul_(normalised, projection, -1).mul_(inverse_rms);
  result.x = gradients.with_sum(grad).to(x.scalar_type());
  return result;
}

// The norm alone, or with the sum that it is of.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const at::Tensor& weight, const std::optional<at::Tensor>& residual,
                               double epsilon) {
    RECORD_FUNCTION("sherd::rms_norm", {});
    const bool fast = cpu::serves(input);
    const NormInputs inputs(input, residual, fast);
    at::Tensor inverse_rms;
    at::Tensor output = fast ? fast_forward(inputs, weight, epsilon, inverse_rms)
                             : plain_forward(inputs.sum, weight, epsilon, inverse_rms);
    context->saved_data["fast"] = fast;
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["version"] = static_cast<int64_t>(output._version());
    context->set_materialize_grads(false);
    context->save_for_backward({inputs.sum, weight, inverse_rms});
    return residual ? variable_list{output, inputs.sum} : variable_list{output};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::rms_norm_backward", {});
    once_differentiable("sherd::rms_norm");
    context->saved_data.erase("output");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse_rms = saved[2];
    const bool fast = context->saved_data["fast"].toBool();
    const NormGradients grads(gradients, x);
    const bool wants_weight = context->needs_input_grad(1);
    const RmsNormGradients result =
        fast ? fast_backward(grads, x, weight, inverse_rms, wants_weight)
             : plain_backward(grads, x, weight, inverse_rms, wants_weight);
    return {result.x, result.weight, gradients.size() == 2 ? result.x : at::Tensor(), {}};
  }

  static at::Tensor again(AutogradContext& context) {
    RECORD_FUNCTION("sherd::rms_norm_again", {});
    const auto saved = context.get_saved_variables();
    const bool fast = context.saved_data.at("fast").toBool();
    const double epsilon = context.saved_data.at("epsilon").toDouble();
    at::Tensor inverse_rms;
    return fast ? fast_forward({saved[0], std::nullopt, fast}, saved[1], epsilon, inverse_rms)
                : plain_forward(saved[0], saved[1], epsilon, inverse_rms);
  }
};

}  // namespace

NormAgain rms_norm_again(const at::Tensor& tensor) {
  return again_of<RmsNorm>(tensor);
}

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  return RmsNorm::apply(input, weight, std::nullopt, epsilon).front();
}

NormalisedSum add_rms_norm(const at::Tensor& input, const at::Tensor& residual,
                           const at::Tensor& weight, double epsilon) {
  const variable_list both = RmsNorm::apply(input, weight, residual, epsilon);
  return {both[1], both[0]};
}

}  // namespace sherd::ops
