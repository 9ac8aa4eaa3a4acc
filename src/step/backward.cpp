// The backward of a unit from top to bottom: pre_backward(), the gradients of its operators,
// post_backward(); and, when the whole backward ends, end_backward().

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include "sherd/error.h"
#include "step/step.h"

namespace sherd::detail {

UnitUse::~UnitUse() {
  step->drop_use(*this);
}

void Step::pre_backward(UnitUse& use) {
  UnitState& unit = use.unit;
  if (at::GradMode::is_enabled()) {
    throw Error(ExitCode::Usage,
                "[backward] unit '" + unit.name() +
                    "' was to run backward with create_graph, and the gradient of a gradient needs "
                    "parameters that are sharded again by then: leave create_graph off, or compute "
                    "that term with a model that is not sharded.");
  }
  begin_backward(use.step);
  progress(unit).add(&use);  // again, if its graph was kept after a backward
  use.in_backward = true;
  if (unit.backward_settings.unshard_in_backward) {
    unit.unshard();
    unit.wait_unshard();
  }
  std::erase(gathered_ahead_, &unit);
  if (use.saved != nullptr) {
    model_.collectives.run(Work::Local, "activations from the host", unit.name(),
                           [&] { ActivationStore::fetch(*use.saved); });
  }
  if (model_.options.backward_prefetch == BackwardPrefetch::Pre) {
    gather_ahead(schedule_.ahead_in_backward(unit.index()), /*in_evaluation=*/false);
  }
}

void Step::begin_backward(const std::shared_ptr<Step>& self) {
  leave_failed_backward();
  if (backward_ == Backward::Running) {
    return;
  }
  check_not_torn("backward");
  backward_ = Backward::Failed;  // until the end callback is queued
  close_update_window();
  take_gradient_changes();
  model_.collectives.set_phase(Phase::Backward);
  if (gradients_.optimized_in_backward()) {
    check_optimizer_in_backward();
  }
  gradients_.apply_pending_factor();  // new gradients are added to clipped ones
  schedule_.begin_backward();
  const auto step = std::make_shared<std::shared_ptr<Step>>(self);
  end_callback_ = step;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [step] { std::exchange(*step, nullptr)->end_backward(); });
  backward_ = Backward::Running;
}

void Step::check_optimizer_in_backward() const {
  for (const auto& unit : model_.units) {
    const size_t uses = progress(*unit).uses();
    const bool is_repeated = uses > 1 && unit->settings().checkpoint_activations;
    const auto is_inside = [&](const auto& other) {
      return other->level() > unit->level() && other->name().starts_with(unit->name() + ".");
    };
    // Units nested in a checkpointed one are recomputed, and reduced, for each of its calls.
    if (is_repeated && std::ranges::any_of(model_.units, is_inside)) {
      throw Error(ExitCode::Usage,
                  "[backward] unit '" + unit->name() + "' was called " + std::to_string(uses) +
                      " times; it is checkpointed and holds other units, so these would be updated "
                      "after each call, and the optimizer works in backward: build AdamW without "
                      "in_backward, or checkpoint the inner units only.");
    }
  }
  for (const auto& unit : model_.units) {
    if (!unit->backward_settings.sums_over_all_ranks() ||
        !unit->backward_settings.reshard_after_backward) {
      throw Error(ExitCode::Usage,
                  "[backward] unit '" + unit->name() +
                      "' accumulates gradients or keeps its parameters, and the optimizer works in "
                      "backward: build AdamW without in_backward, or leave "
                      "set_requires_gradient_sync, set_requires_all_reduce and "
                      "set_reshard_after_backward at true.");
    }
  }
}

void Step::post_backward(UnitUse& use) {
  begin_backward(use.step);  // no gradient of its outputs may have come, only one of a member
  UnitState& unit = use.unit;
  use.in_backward = false;
  if (!accumulates_gradients(unit)) {
    return reshard_after_backward(unit);
  }
  progress(unit).remove(&use);
  if (!progress(unit).awaits_backward()) {
    reduce_unit(unit);
  }
}

// Reduces what has been written, and reshards.
void Step::reduce_unit(UnitState& unit) {
  UnitProgress& now = progress(unit);
  now.remove_uses_in_backward();
  now.called = now.awaits_backward();
  reshard_after_backward(unit);
  for (const auto& segment : unit.segments()) {
    if (unit.is_trained(*segment)) {
      gradients_.reduce(unit, *segment->gradients());
    }
  }
  if (model_.options.backward_prefetch == BackwardPrefetch::Post) {
    gather_ahead(schedule_.ahead_in_backward(unit.index()), /*in_evaluation=*/false);
  }
}

void Step::reshard_after_backward(UnitState& unit) {
  const UnitProgress& now = progress(unit);
  if (unit.backward_settings.reshard_after_backward && !now.in_forward() && !now.in_backward()) {
    unit.reshard();
  }
}

void Step::end_backward() {
  backward_ = Backward::Failed;  // until all of it is done
  for (const auto& unit : model_.units) {
    finish_unit(*unit);
  }
  gathered_ahead_.clear();
  gradients_.finish_reductions();
  if (gradients_.optimized_in_backward()) {
    writing_ended(State::TrainedValues);
    writing_ended(State::Optimizer);
  }
  show_gradients();
  if (!in_forward()) {
    open_update_window();
  }
  backward_ = Backward::None;
}

// Work left for the end of a backward: units without an input that requires gradients, sums of
// earlier micro-batches, parameters gathered ahead.
void Step::finish_unit(UnitState& unit) {
  UnitProgress& now = progress(unit);
  if (has_gradients_to_reduce(unit) ||
      (accumulates_gradients(unit) && (now.called || now.in_backward()))) {
    return reduce_unit(unit);  // even without gradients: other ranks may have some
  }
  now.leave_backward();
  reshard_after_backward(unit);  // gathered ahead and not used
}

bool Step::has_gradients_to_reduce(const UnitState& unit) const {
  return std::ranges::any_of(unit.segments(), [&](const auto& segment) {
    const SegmentGradients* gradients = segment->gradients();
    return gradients != nullptr &&
           (gradients->bound() ||
            (gradients->has_unsharded_sum() && !gradients_.accumulates_unsharded(unit)));
  });
}

void Step::drop_use(const UnitUse& use) noexcept {
  if (!progress(use.unit).remove(&use)) {
    return;  // it has run, or its step was given up
  }
  const bool is_cpu =
      model_.mesh.world().device().is_cpu();  // autograd runs on the caller's thread
  if (!is_cpu && std::this_thread::get_id() != driver_.load()) {
    graph_freed_elsewhere_ = true;
    return;
  }
  try {
    if (awaits_update_window() && backward_ == Backward::None && is_idle()) {
      open_update_window();
    }
  } catch (...) {  // a peer is lost; the next collective says so
    expect_update();
  }
}

}  // namespace sherd::detail
