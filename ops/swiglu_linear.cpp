#include "ops/swiglu_linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"
#include "ops/shared/inference_linear.h"
#include "ops/shared/matrix.h"
#include "ops/shared/products.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SwiGluLinear : torch::autograd::Function<SwiGluLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const at::Tensor& weight) {
    RECORD_FUNCTION("sherd::swiglu_linear", Recorded({gate, weight}));
    const Backend& backend = choose_backend(*context, gate);
    context->save_for_backward({gate, up, weight});
    const at::Tensor product = as_matrix(backend.swiglu(gate, up));
    return with_leading_sizes(product_of(backend, product, weight.t()), gate.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Backend& backend = chosen_backend(*context);
    const bool wants_weight = context->needs_input_grad(2);
    const bool in_one = wants_weight && backend.swiglu_backward_with_product != nullptr;
    RECORD_FUNCTION("sherd::swiglu_linear_backward",
                    Recorded({gradients[0], saved[2], static_cast<int64_t>(in_one)}));
    once_differentiable("sherd::swiglu_linear");
    const at::Tensor &gate = saved[0], &up = saved[1], &weight = saved[2];
    const at::Tensor grad_output = as_matrix(gradients[0]);
    const auto weight_gradient = [&](const at::Tensor& product) {
      return deliver_gradient(
          weight, [&](at::Tensor& out) { backend.mm(out, grad_output.t(), as_matrix(product)); });
    };
    at::Tensor grad_weight;
    if (wants_weight && !in_one) {
      grad_weight = weight_gradient(backend.swiglu(gate, up));
    }
    at::Tensor grad_product = product_of(backend, grad_output, weight).view(gate.sizes());
    if (!in_one) {
      const SwiGluGradients grads = backend.swiglu_backward(grad_product, gate, up);
      return {grads.gate, grads.up, grad_weight};
    }
    const SwiGluGradients grads = backend.swiglu_backward_with_product(grad_product, gate, up);
    return {grads.gate, grads.up, weight_gradient(grad_product)};
  }
};

}  // namespace

at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight) {
  if (!at::GradMode::is_enabled()) {
    return inference_linear(backend_of(gate).swiglu(gate, up), weight);
  }
  return SwiGluLinear::apply(gate, up, weight);
}

}  // namespace sherd::ops
