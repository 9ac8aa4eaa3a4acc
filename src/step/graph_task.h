#pragma once
// Which nodes the backward under way runs, as autograd knows it.

#include "unit/unit_state.h"

namespace sherd::detail {

/// Whether a backward is under way on this thread.
[[nodiscard]] bool inside_backward();

/// Whether the backward under way accumulates a gradient into the parameter, or none is under way:
/// torch::autograd::grad, and a backward towards some tensors, need not.
[[nodiscard]] bool accumulates_gradient(const at::Tensor& parameter);

/// Whether it does so for a parameter of the unit. The same on every rank.
[[nodiscard]] bool accumulates_gradients(const UnitState& unit);

/// Whether it does so for everything that it reaches. What a checkpointed unit recomputes is not in
/// its graph, so that nothing can ask for some of it.
[[nodiscard]] bool accumulates_everywhere();

}  // namespace sherd::detail
