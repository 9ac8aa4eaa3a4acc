#pragma once
// Where the backward of a unit begins and ends.
//
// [Note: The two ends of a unit]
// - Its *outputs* carry a hook: the first gradient to arrive gathers the parameters
//   (Step::pre_backward).
// - Its *inputs* pass through an identity node, older than every node of the unit. Autograd runs
//   younger nodes first, and gradient accumulation before any, so when that node runs, all
//   gradients of the unit are there (Step::post_backward). A unit without an input that requires
//   gradients (an embedding) is finished when the backward ends.

#include <memory>

#include "sherd/unit.h"
#include "step/unit_use.h"

namespace sherd::detail {

/// Passes the inputs that require gradients through the node that ends the use's backward.
void gate_inputs(const std::shared_ptr<UnitUse>& use, const TensorList& inputs);

}  // namespace sherd::detail
