// One call of a unit from top to bottom. ForwardScope casts its inputs and outputs, ties its
// backward to them, and enters and leaves the unit: begin_forward(), pre_forward(), the module's
// own forward, post_forward(); or, after an exception, leave_forward().
//
// [Note: The two ends of a unit]
// - Its *outputs* carry a hook: the first gradient to arrive gathers the parameters
//   (Step::pre_backward).
// - Its *inputs* pass through an identity node, older than every node of the unit. Autograd runs
//   younger nodes first, and gradient accumulation before any, so when that node runs, all
//   gradients of the unit are there (Step::post_backward). A unit without an input that requires
//   gradients (an embedding) is finished when the backward ends.

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include "sherd/error.h"
#include "sherd/memory.h"
#include "sherd/unit.h"
#include "step/step.h"

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
    use.step->post_backward(use);
    gradients.insert(gradients.begin(), at::Tensor());  // for the capsule argument
    return gradients;
  }
};

// Passes the inputs that require gradients through the node that ends the use's backward.
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

}  // namespace

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
    saving_ = save_on_host(*use_);
  }
}

void ForwardScope::leave(const TensorList& outputs) {
  saving_.reset();
  bool needs_backward = false;
  for (at::Tensor* output : outputs) {
    if (output->defined() && use_ != nullptr && output->requires_grad()) {
      needs_backward = true;
      if (output->is_leaf()) {
        *output = at::alias(*output);  // a hook of a leaf would live as long as the leaf
      }
      output->register_hook([use = use_](const at::Tensor&) { use->step->pre_backward(*use); });
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

void Step::check_values_once() {
  if (values_checked_) {
    return;
  }
  require_values(model_, "forward");
  if (!model_.replicas_differ.empty()) {
    throw Error(ExitCode::RanksDisagree,
                "[forward] replicas begin with other values. " + model_.replicas_differ +
                    "Build the model with the same seed on all ranks, call sync_module_states() "
                    "before fully_shard(), or load values after it.");
  }
  values_checked_ = true;
}

int Step::begin_forward(UnitState& unit) {
  if (full_parameters_shown_) {
    refuse_while_full_parameters_shown("unit '" + unit.name() + "' was called");
  }
  leave_failed_backward();
  if (repeated_ == 0) {
    if (backward_ == Backward::None) {
      driver_ = std::this_thread::get_id();
    }
    check_not_torn("forward");
    check_values_once();
    close_update_window();
    if ((unit.is_root() || schedule_.has_begun(unit.index())) && is_idle()) {
      drop_gathered_ahead(0);
      schedule_.begin_iteration();
      for (UnitProgress& each : progress_) {
        each.called = false;  // calls that got no backward are forgotten
      }
    }
    model_.collectives.set_phase(Phase::Forward);
    schedule_.begin_unit(unit.index());
  }
  return progress(unit).forward_depth++;
}

void Step::pre_forward(UnitState& unit) {
  unit.unshard(is_evaluating());
  unit.wait_unshard();
  for (UnitParameter& parameter : unit.parameters()) {
    parameter.version = parameter.version_now();
  }
  std::erase(gathered_ahead_, &unit);
  if (repeated_ == 0) {
    gather_ahead(schedule_.ahead_in_forward(), is_evaluating());
  }
}

bool Step::is_evaluating() const {
  return !at::GradMode::is_enabled() && to_be_repeated_ == 0;
}

// Ranks may share the memory that was written, and none keeps it for long.
void Step::refuse_writes_in_forward(const UnitState& unit) {
  for (const UnitParameter& parameter : unit.parameters()) {
    if (parameter.version_now() != parameter.version) {
      if (model_.communicators->shards->gathers_in_place()) {
        writing_begins(State::Values, "a forward that wrote parameters");
      }
      throw Error(ExitCode::Usage,
                  "[forward] unit '" + unit.name() + "' wrote its parameter '" + parameter.name +
                      "' in its forward, where it is a gathered copy or memory that ranks share: "
                      "compute with a changed copy of it (weight + noise), or write it between "
                      "steps (with_full_parameters with writeback). torch::nn::Embedding with "
                      "max_norm writes its weight.");
    }
  }
}

void Step::post_forward(UnitState& unit, UnitUse* use, int depth_before) {
  refuse_writes_in_forward(unit);
  UnitProgress& now = progress(unit);
  now.forward_depth = depth_before;
  if (use != nullptr) {
    now.add(use);
    now.called = true;
  }
  const bool awaits_backward = now.awaits_backward();
  if (!now.in_forward() && (!awaits_backward || unit.settings().reshard_after_forward)) {
    for (const auto& segment : unit.segments()) {
      if (awaits_backward) {
        segment->keep_post_forward_shard();
      }
    }
    unit.reshard();
  }
  if (repeated_ > 0) {
    return;
  }
  if (use != nullptr || to_be_repeated_ > 0) {  // others have no backward to gather ahead for
    schedule_.end_unit(unit.index());
  }
  // An evaluation says nothing of older graphs, which may wait for a backward for ever.
  const bool no_backward_follows = is_idle() || (is_evaluating() && !in_forward());
  if (masters_handed_out() && no_backward_follows && backward_ == Backward::None) {
    open_update_window();
  }
}

void Step::leave_forward(UnitState& unit, int depth_before) {
  UnitProgress& now = progress(unit);
  now.forward_depth = depth_before;
  if (!in_forward()) {
    abandon();
  } else if (!now.in_forward() && !now.awaits_backward()) {
    unit.reshard();
  }
}

// No unit runs forward, and none waits for a backward.
bool Step::is_idle() const {
  return std::ranges::none_of(progress_, [](const UnitProgress& unit) {
    return unit.awaits_backward() || unit.in_forward();
  });
}

bool Step::in_forward() const {
  return std::ranges::any_of(progress_, &UnitProgress::in_forward);
}

void Step::gather_ahead(const std::vector<int>& units, bool in_evaluation) {
  for (const int index : units) {
    UnitState& unit = *model_.units[static_cast<size_t>(index)];
    const bool skipped =
        backward_ == Backward::Running && !unit.backward_settings.unshard_in_backward;
    if (skipped || unit.storage_state() == StorageState::Unsharded) {
      continue;
    }
    drop_gathered_ahead(static_cast<size_t>(schedule_.depth()) - 1);
    unit.unshard(in_evaluation);
    gathered_ahead_.push_back(&unit);
  }
}

void Step::drop_gathered_ahead(size_t keep) {
  while (gathered_ahead_.size() > keep) {
    UnitState* oldest = gathered_ahead_.front();
    gathered_ahead_.pop_front();
    oldest->reshard();
  }
}

}  // namespace sherd::detail
