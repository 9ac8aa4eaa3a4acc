// The forward of a unit from top to bottom: begin_forward(), pre_forward(), the module's own
// forward, post_forward(); or, after an exception, leave_forward().

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "sherd/error.h"
#include "step/step.h"

namespace sherd::detail {

int Step::begin_forward(UnitState& unit) {
  if (full_parameters_shown_) {
    refuse_while_full_parameters_shown("unit '" + unit.name() + "' was called");
  }
  if (!values_checked_) {
    check_not_torn("forward");
    require_values(model_, "forward");
    values_checked_ = true;
  }
  leave_failed_backward();
  if (repeated_ == 0) {
    if (backward_ == Backward::None) {
      driver_ = std::this_thread::get_id();
    }
    check_not_torn("forward");
    close_update_window();
    if ((unit.is_root() || schedule_.has_begun(unit.index())) && is_idle()) {
      begin_iteration();
    }
    model_.collectives.set_phase(Phase::Forward);
    schedule_.begin_unit(unit.index());
  }
  return progress(unit).forward_depth++;
}

// Calls that got no backward are forgotten.
void Step::begin_iteration() {
  drop_gathered_ahead(0);
  schedule_.begin_iteration();
  for (UnitProgress& unit : progress_) {
    unit.called = false;
  }
}

void Step::pre_forward(UnitState& unit) {
  unit.unshard(is_evaluating());
  unit.wait_unshard();
  std::erase(gathered_ahead_, &unit);
  if (repeated_ == 0) {
    gather_ahead(schedule_.ahead_in_forward(), is_evaluating());
  }
}

bool Step::is_evaluating() const {
  return !at::GradMode::is_enabled() && to_be_repeated_ == 0;
}

void Step::post_forward(UnitState& unit, UnitUse* use, int depth_before) {
  UnitProgress& now = progress(unit);
  now.forward_depth = depth_before;
  if (use != nullptr) {
    now.uses.add(use);
    now.called = true;
  }
  if (!now.in_forward()) {
    reshard_after_forward(unit);
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

void Step::reshard_after_forward(UnitState& unit) {
  if (progress(unit).awaits_backward()) {
    if (!unit.settings().reshard_after_forward) {
      return;
    }
    for (const auto& segment : unit.segments()) {
      segment->keep_post_forward_shard();
    }
  }
  unit.reshard();
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
  return std::none_of(progress_.begin(), progress_.end(), [](const UnitProgress& unit) {
    return unit.awaits_backward() || unit.in_forward();
  });
}

bool Step::in_forward() const {
  return std::any_of(progress_.begin(), progress_.end(),
                     [](const UnitProgress& unit) { return unit.in_forward(); });
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
