#include "ops/swiglu_linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/shared/gradient.h"
#include "ops/shared/inference_linear.h"
#include "ops/shared/matrix.h"
#include "ops/shared/recorded.h"
#include "ops/shared/weight_products.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SiluGate {
  static constexpr const char* kForward = "sherd::swiglu_linear";
  static constexpr const char* kBackward = "sherd::swiglu_linear_backward";
  static constexpr auto kGate = &Backend::swiglu;
  static constexpr auto kGateBackward = &Backend::swiglu_backward;
  static constexpr auto kGateBackwardWithProduct = &Backend::swiglu_backward_with_product;
};
struct GeluGate {
  static constexpr const char* kForward = "sherd::geglu_linear";
  static constexpr const char* kBackward = "sherd::geglu_linear_backward";
  static constexpr auto kGate = &Backend::geglu;
  static constexpr auto kGateBackward = &Backend::geglu_backward;
  static constexpr auto kGateBackwardWithProduct = &Backend::geglu_backward_with_product;
};

template <class Gate>
struct GatedLinear : torch::autograd::Function<GatedLinear<Gate>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const at::Tensor& weight) {
    RECORD_FUNCTION(Gate::kForward, Recorded({gate, recorded_weight(weight)}));
    const Backend& backend = choose_backend(*context, gate);
    context->save_for_backward({gate, up, weight});
    const at::Tensor product = as_matrix((backend.*Gate::kGate)(gate, up));
    return with_leading_sizes(weight_product(backend, product, weight), gate.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Backend& backend = chosen_backend(*context);
    const bool wants_weight = context->needs_input_grad(2);
    const auto with_product = wants_weight ? backend.*Gate::kGateBackwardWithProduct : nullptr;
    const bool in_one = with_product != nullptr;
    RECORD_FUNCTION(Gate::kBackward, Recorded({gradients[0], recorded_weight(saved[2]),
                                               static_cast<int64_t>(in_one)}));
    once_differentiable(Gate::kForward);
    const at::Tensor &gate = saved[0], &up = saved[1], &weight = saved[2];
    const at::Tensor grad_output = as_matrix(gradients[0]);
    const auto weight_gradient = [&](const at::Tensor& product) {
      return deliver_gradient(
          weight, [&](at::Tensor& out) { backend.mm(out, grad_output.t(), as_matrix(product)); });
    };
    at::Tensor grad_weight;
    if (wants_weight && !in_one) {
      grad_weight = weight_gradient((backend.*Gate::kGate)(gate, up));
    }
    at::Tensor grad_product = input_gradient(backend, grad_output, weight).view(gate.sizes());
    if (!in_one) {
      const SwiGluGradients grads = (backend.*Gate::kGateBackward)(grad_product, gate, up);
      return {grads.gate, grads.up, grad_weight};
    }
    const SwiGluGradients grads = with_product(grad_product, gate, up);
    return {grads.gate, grads.up, weight_gradient(grad_product)};
  }
};

template <class Gate>
at::Tensor gated_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight) {
  if (!at::GradMode::is_enabled()) {
    return inference_linear((backend_of(gate).*Gate::kGate)(gate, up), weight);
  }
  return GatedLinear<Gate>::apply(gate, up, weight);
}

}  // namespace

at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight) {
  return gated_linear<SiluGate>(gate, up, weight);
}

at::Tensor geglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight) {
  return gated_linear<GeluGate>(gate, up, weight);
}

}  // namespace sherd::ops
