#include "sherd/grad_slot.h"

#include "seam/parameter_hook.h"
#include "step/graph_task.h"

namespace sherd {

GradSlot GradSlot::of(const at::Tensor& parameter) {
  const auto* hook = parameter.requires_grad() ? detail::hook_of(parameter) : nullptr;
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
