#pragma once
// How autograd reaches a sharded parameter and its unit, and what it is doing.

#include "sherd/unit.h"
#include "step/step.h"

namespace sherd::detail {

/// Gives each parameter of the unit a hook that moves accumulated gradients into the unit's reduce
/// buffer. `.grad` of the parameters throws Error(Usage) outside of backward from now on: code that
/// looks for gradients there (torch::optim, clip_grad_norm_, Module::zero_grad) would find none,
/// and silently do nothing.
void install_parameter_hooks(const ShardedUnit& unit);

/// Returns true if the parameter belongs to a sharded model, or did while that lived.
[[nodiscard]] bool is_sharded(const at::Tensor& parameter);

/// Returns true if a backward is running on this thread.
[[nodiscard]] bool inside_backward();

/// Returns true if the running backward accumulates a gradient into a parameter of the unit, or if
/// none is running: torch::autograd::grad, and a backward towards some tensors, need not. The same
/// on every rank.
[[nodiscard]] bool accumulates_gradients(const UnitState& unit);

/// Returns true if the running backward accumulates into everything that it reaches. What a
/// checkpointed unit recomputes is not in its graph, so nothing can ask for some of it.
[[nodiscard]] bool accumulates_everywhere();

}  // namespace sherd::detail
