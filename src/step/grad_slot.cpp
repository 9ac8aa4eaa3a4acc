#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "sherd/custom.h"
#include "step/graph_task.h"
#include "step/parameter_hook.h"

namespace sherd {

namespace {

// Where saved tensors have hooks, autograd gives back a parameter as another tensor over the same
// memory, with the same accumulator.
detail::ParameterHook* hook_behind(const at::Tensor& parameter) {
  if (detail::ParameterHook* const hook = detail::hook_of(parameter)) {
    return hook;
  }
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto* const accumulator = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get());
  return accumulator == nullptr ? nullptr : detail::hook_of(accumulator->variable);
}

}  // namespace

GradSlot GradSlot::of(const at::Tensor& parameter) {
  const auto* hook = parameter.requires_grad() ? hook_behind(parameter) : nullptr;
  if (hook == nullptr || !detail::accumulates_gradient(parameter)) {
    return {nullptr, 0};
  }
  return {hook->unit(), static_cast<int64_t>(hook->parameter())};
}

at::Tensor GradSlot::begin_write() const {
  return unit_->begin_gradient_write(static_cast<size_t>(parameter_));
}

void GradSlot::end_write(const at::Tensor& target) const {
  unit_->end_gradient_write(static_cast<size_t>(parameter_), target);
}

at::Tensor GradSlot::begin_add() const {
  return unit_->begin_gradient_add(static_cast<size_t>(parameter_));
}

}  // namespace sherd
