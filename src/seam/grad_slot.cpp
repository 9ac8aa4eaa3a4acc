#include "sherd/grad_slot.h"

#include <ATen/ops/empty_like.h>

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
  const auto parameter = static_cast<size_t>(parameter_);
  at::Tensor slot = unit_->gradient_slot(parameter);
  return unit_->gradient_written(parameter) ? at::empty_like(slot) : slot;
}

void GradSlot::end_write(const at::Tensor& target) const {
  const auto parameter = static_cast<size_t>(parameter_);
  if (unit_->gradient_written(parameter)) {
    unit_->gradient_slot(parameter).add_(target);
  } else {
    unit_->mark_gradient_written(parameter);
  }
}

at::Tensor GradSlot::begin_add() const {
  const auto parameter = static_cast<size_t>(parameter_);
  at::Tensor slot = unit_->gradient_slot(parameter);
  if (!unit_->gradient_written(parameter)) {
    slot.zero_();
    unit_->mark_gradient_written(parameter);
  }
  return slot;
}

}  // namespace sherd
