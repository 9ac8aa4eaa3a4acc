#include "step/input_gate.h"

#include <utility>

#include <torch/csrc/autograd/custom_function.h>

namespace sherd::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Carries a use through autograd's graph, which keeps it alive.
struct UseCapsule : torch::CustomClassHolder {
  explicit UseCapsule(std::shared_ptr<UnitUse> held) : use(std::move(held)) {}
  std::shared_ptr<UnitUse> use;
};

struct InputGate : torch::autograd::Function<InputGate> {
  // A TensorList, since autograd does not look for variables inside a vector.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<UseCapsule>& use,
                               at::TensorList inputs) {
    context->saved_data["use"] = c10::IValue::make_capsule(use);
    context->set_materialize_grads(false);  // an undefined gradient stays undefined
    return inputs.vec();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["use"].toCapsule();
    UnitUse& use = *static_cast<UseCapsule&>(*capsule).use;
    use.step()->post_backward(use);
    gradients.insert(gradients.begin(), at::Tensor());  // for the capsule argument
    return gradients;
  }
};

}  // namespace

void gate_inputs(const std::shared_ptr<UnitUse>& use, const TensorList& inputs) {
  variable_list differentiable;
  TensorList places;
  for (at::Tensor* input : inputs) {
    if (input->defined() && input->requires_grad()) {
      differentiable.push_back(*input);
      places.push_back(input);
    }
  }
  if (differentiable.empty()) {
    return;
  }
  const auto capsule = c10::make_intrusive<UseCapsule>(use);
  const variable_list gated = InputGate::apply(capsule, at::TensorList(differentiable));
  for (size_t i = 0; i < places.size(); ++i) {
    *places[i] = gated[i];
  }
}

}  // namespace sherd::detail
