// One call of a unit: casts of its inputs and outputs, and the hooks that tie its backward to them.

#include <memory>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "sherd/error.h"
#include "sherd/memory.h"
#include "sherd/unit.h"
#include "step/input_gate.h"
#include "step/saved_tensors.h"
#include "step/step.h"

namespace sherd::detail {

// Once the delegated constructor has run, the destructor also follows what this one throws.
ForwardScope::ForwardScope(const ShardedUnit& unit)
    : ForwardScope(unit, unit.step->begin_forward(*unit.state)) {
  unit_.step->pre_forward(*unit_.state);
}

ForwardScope::ForwardScope(const ShardedUnit& unit, int depth_before)
    : unit_(unit), depth_before_(depth_before) {}

ForwardScope::~ForwardScope() {
  if (left_) {
    return;
  }
  try {
    unit_.step->leave_forward(*unit_.state, depth_before_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the exception on its way is the first failure
  }
}

void ForwardScope::cast_inputs(const TensorList& inputs) {
  const UnitState& unit = *unit_.state;
  const auto dtype = unit.compute_dtype();
  for (at::Tensor* input : inputs) {
    const bool casts = unit.settings().precision.cast_forward_inputs && dtype && input->defined() &&
                       input->is_floating_point();
    const bool moves = input->defined() && input->device() != unit.device();
    if (casts || moves) {
      unit_.step->model().collectives.run(Work::Local, "cast of inputs", unit.name(), [&] {
        *input = to_device(*input, unit.device());
        *input = casts ? input->to(*dtype) : *input;
      });
    }
  }
}

void ForwardScope::enter(const TensorList& inputs) {
  if (at::GradMode::is_enabled()) {
    use_ = std::make_shared<UnitUse>(unit_.step, *unit_.state);
    gate_inputs(use_, inputs);
    saving_ = std::make_shared<SavingScope>(*use_);
  }
}

void ForwardScope::leave(const TensorList& outputs) {
  saving_.reset();
  bool needs_backward = false;
  for (at::Tensor* output : outputs) {
    if (output->defined() && use_ != nullptr && output->requires_grad()) {
      needs_backward = true;
      output->register_hook([use = use_](const at::Tensor&) { use->step()->pre_backward(*use); });
    }
  }
  cast_outputs(outputs);
  end(needs_backward ? use_.get() : nullptr);
}

void ForwardScope::end(UnitUse* use) {
  unit_.step->post_forward(*unit_.state, use, depth_before_);
  left_ = true;
}

void ForwardScope::cast_outputs(const TensorList& outputs) const {
  const auto& dtype = unit_.state->settings().precision.output_dtype;
  for (at::Tensor* output : outputs) {
    if (dtype && output->defined() && output->is_floating_point()) {
      unit_.step->model().collectives.run(Work::Local, "cast of outputs", unit_.state->name(),
                                          [&] { *output = output->to(*dtype); });
    }
  }
}

void refuse_to_convert(const UnitState* unit) {
  if (unit != nullptr) {
    throw Error(ExitCode::Usage, "[to] unit '" + unit->name() +
                                     "' is sharded, and its parameters cannot be converted or "
                                     "moved: call to() before fully_shard(), or choose the dtype "
                                     "with Precision::param_dtype.");
  }
}

void refuse_to_clone(const UnitState* unit) {
  if (unit != nullptr) {
    throw Error(ExitCode::Usage, "[clone] unit '" + unit->name() +
                                     "' is sharded, and cannot be copied: build the model once "
                                     "more and shard that, or clone it before fully_shard().");
  }
}

}  // namespace sherd::detail
