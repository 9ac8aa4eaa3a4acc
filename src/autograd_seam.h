#pragma once
// Where autograd calls the engine: hooks on parameters, and nodes at both ends of a unit.
//
// [Note: The two ends of a unit]
// - Its *outputs* carry a hook: the first gradient to arrive gathers the parameters (pre-backward).
// - Its *inputs* pass through an identity node, older than every node of the unit. Autograd runs
// younger nodes first, and
//   gradient accumulation before any, so when that node runs, all gradients of the unit are there:
//   the use is finished. A unit without an input that requires gradients (an embedding) is finished
//   when the backward ends.

#include <memory>

#include "unit_state.h"

namespace sherd::detail {

/// Lets the unit know when a gradient of its parameter has been accumulated the stock way, and
/// GradSlot find the unit.
void install_gradient_hook(const std::shared_ptr<Runtime>& runtime, UnitState& unit,
                           size_t parameter);

/// Whether the backward under way accumulates gradients into parameters of the unit:
/// torch::autograd::grad, and a backward towards some tensors, need not. The same on every rank.
[[nodiscard]] bool accumulates_gradients(const UnitState& unit);

/// Whether it does so for everything that it reaches. What a checkpointed unit recomputes is not in
/// its graph, so that nothing can ask for some of it.
[[nodiscard]] bool accumulates_everywhere();

/// Whether the parameter belongs to a sharded model, or did while that lived.
[[nodiscard]] bool is_sharded(const at::Tensor& parameter);

}  // namespace sherd::detail
